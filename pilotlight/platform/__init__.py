"""The platform on one machine: Redis, object store, zygote with its pods, gateway, supervised."""
