"""For tests: a fixed clock, waiting, free ports, and the plugin of pytest that all our suites use."""
