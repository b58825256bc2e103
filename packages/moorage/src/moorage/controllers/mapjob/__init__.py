"""The workers of a MapJob: as many as its queue can use. See docs/design/0008-mapjob.md."""
