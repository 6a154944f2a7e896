"""A gRPC server without TLS, for `./x demo tls`: the service of greeter.proto, without generated code. Prints its port, then serves
until it is killed."""

from concurrent import futures

import grpc

# Of a message whose first field is a short string: the field's number and type, and its length.
FIELD = b"\n"


def text(message):
    return message[2 : 2 + message[1]].decode() if message.startswith(FIELD) else ""


def greeting(words):
    encoded = words.encode()
    return FIELD + bytes([len(encoded)]) + encoded


def greet(request, context):
    context.set_trailing_metadata((("x-greeted", text(request)),))
    return greeting(f"hello, {text(request)}")


def count(request, context):
    for number in range(1, 4):
        yield greeting(f"hello {number}, {text(request)}")


def refuse(request, context):
    context.abort(grpc.StatusCode.PERMISSION_DENIED, f"not today, {text(request)}")


handlers = {
    "Greet": grpc.unary_unary_rpc_method_handler(greet),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Refuse": grpc.unary_unary_rpc_method_handler(refuse),
}
server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("demo.Greeter", handlers),))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
