"""The networks, and adapters of modules from elsewhere. `models.ARCHITECTURES` lists them by name."""
