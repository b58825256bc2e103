"""Forms with files, as a browser sends them."""

from __future__ import annotations

BOUNDARY = "edge"
CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def a_form(*fields: tuple[str, str | None, bytes]) -> bytes:
    """The body of a form; a field is its name, the name of its file (None: no file), and its content."""
    body = b""
    for name, filename, content in fields:
        head = f'Content-Disposition: form-data; name="{name}"'
        if filename is not None:
            escaped = filename.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
            head += f'; filename="{escaped}"\r\nContent-Type: application/octet-stream'
        body += f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + content + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()
