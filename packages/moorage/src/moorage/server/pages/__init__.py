"""The web pages: templates, static files, and their content as typed values."""
