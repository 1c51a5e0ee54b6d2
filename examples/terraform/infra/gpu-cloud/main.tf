# A skeleton for a cloud: fill in its provider and resources. Such a module is about thirty lines.
#
# terraform {
#   required_providers {
#     cloud = { source = "example/cloud", version = "~> 1.0" }
#   }
# }
#
# provider "cloud" { token = var.cloud_token }

variable "name" { type = string }       # the node: gpu-0
variable "key" { type = string }        # unique: put it in the name or in a tag of everything
variable "public_key" { type = string } # log in with this key
variable "user_data" { type = string }  # for cloud-init: keys, and the end of unused machines

variable "region" { type = string }
variable "machine_type" { type = string }

# secrets: {cloud_token: {secret: NAME}}; ephemeral variables are neither in plans nor in states
variable "cloud_token" {
  type      = string
  ephemeral = true
  default   = null
}

# resource "cloud_ssh_key" "login" {
#   name       = "trainctl-${var.key}"
#   public_key = var.public_key
# }
#
# resource "cloud_instance" "machine" {
#   name      = "trainctl-${var.key}"      # names that are unique refuse a second machine
#   region    = var.region
#   type      = var.machine_type
#   ssh_keys  = [cloud_ssh_key.login.id]
#   user_data = var.user_data
#   lifecycle { ignore_changes = [user_data] }
# }

resource "terraform_data" "machine" { # instead of the cloud's
  input = { address = "192.0.2.1", type = var.machine_type, region = var.region }
}

output "node" {
  value = {
    address        = terraform_data.machine.output.address # cloud_instance.machine.ip
    user           = "ubuntu"
    price_per_hour = 2.49
    # What ends the machine if no user returns. "guest": its own shutdown ends the bill.
    ends = []
  }
}
