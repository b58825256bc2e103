"""The messages about workflows between the operator and the server, and the form of a list of artifacts."""
