"""For tests: a fixed clock, objects of Kubernetes, waiting, free ports, and the pytest plugin of all suites."""
