"""socketify, that is uWebSockets with handlers in Python: GET /json as TechEmpower defines it."""

import sys

from socketify import App

app = App()
app.get("/json", lambda response, _: response.end({"message": "Hello, World!"}))
app.listen({"host": "127.0.0.1", "port": int(sys.argv[1])}, lambda _: None)
app.run()
