"""The web pages: templates, static files, and what they show as typed values."""
