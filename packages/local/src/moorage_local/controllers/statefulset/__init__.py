"""The controller of StatefulSets: pods with stable names and claims."""
