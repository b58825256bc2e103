"""What the operator and the server say to each other about workflows, and what a list of artifacts is."""
