-- The client accepts gzip.
wrk.headers["Accept-Encoding"] = "gzip"
