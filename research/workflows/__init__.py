"""Published policies of workflows, as plug-ins of their scheduler."""
