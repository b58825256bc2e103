"""For tests: a clock that stands still, waiting, free ports, and the plugin of pytest that all our suites use."""
