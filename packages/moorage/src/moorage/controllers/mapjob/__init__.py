"""Makes the workers of a MapJob and keeps as many as its queue can use. See docs/design/0008-mapjob.md."""
