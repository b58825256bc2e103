"""The wire format of the API: requests and answers as Structs, and error codes.

The server decodes requests and encodes answers with them. The SDK and the command line do the reverse. The OpenAPI
document is made from them. Belongs here: shapes. Does not belong here: the work on them (`actions`), HTTP
(`server`, `client`).
"""
