# Machines that are an sshd of this computer each: a cloud for trying things out.

variable "name" { type = string }
variable "key" { type = string }
variable "public_key" { type = string }
variable "user_data" { type = string }

variable "directory" {
  description = "Directory of the machines, absolute."
  type        = string
}

variable "machine_type" {
  type    = string
  default = "small"
}

variable "boot_seconds" {
  type    = number
  default = 0
}

locals {
  # An address of the loopback interface for each machine.
  bytes   = [for at in [0, 2, 4] : parseint(substr(sha256(local.place), at, 2), 16)]
  address = "127.${1 + local.bytes[0] % 250}.${local.bytes[1]}.${1 + local.bytes[2] % 250}"
  place   = "${var.directory}/${var.key}"
}

resource "terraform_data" "machine" {
  input            = { place = local.place, stop = "${abspath(path.module)}/stop.sh" }
  triggers_replace = [var.machine_type]

  # The script may be repeated: a machine of this key that runs already is used.
  provisioner "local-exec" {
    command = "sh ${path.module}/start.sh"
    environment = {
      PLACE        = local.place
      ADDRESS      = local.address
      PUBLIC_KEY   = var.public_key
      BOOT_SECONDS = var.boot_seconds
    }
  }

  provisioner "local-exec" {
    when    = destroy
    command = "sh ${self.input.stop}"
    environment = {
      PLACE = self.input.place
    }
  }
}

locals {
  made    = terraform_data.machine.output.place
  running = fileexists("${local.made}/pid") ? fileexists("/proc/${trimspace(file("${local.made}/pid"))}/cmdline") : false
}

output "node" {
  value = {
    address        = local.running ? local.address : null # null: the machine is gone
    user           = local.running ? trimspace(file("${local.made}/user")) : null
    host_key       = local.running ? trimspace(file("${local.made}/host_key.pub")) : null
    port           = 2222
    price_per_hour = 0.25
    ends           = [] # an sshd of your computer doesn't turn it off
  }
}
