# A host that exists already: nothing is created, and destroy leaves it alone.

variable "name" { type = string }
variable "key" { type = string }
variable "public_key" { type = string }
variable "user_data" { type = string }

variable "hosts" {
  description = "Address, user and host key of each node, by its name."
  type        = map(object({ address = string, user = string, host_key = string }))
}

# What trainctl finds in the state; its key says which node has the host.
resource "terraform_data" "host" {
  input = { key = var.key, host = var.hosts[var.name] }
}

output "node" {
  value = terraform_data.host.output.host
}
