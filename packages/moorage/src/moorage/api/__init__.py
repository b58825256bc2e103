"""What goes over our own wire: requests and answers as Structs, and the codes of errors.

The server decodes requests and encodes answers with them; the SDK and the command line do the reverse; OpenAPI is
made from them. Belongs here: shapes. Does not belong here: what is done with them (`actions`), HTTP (`server`,
`client`).
"""
