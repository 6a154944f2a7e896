"""A gRPC server without generated code: messages are bytes. Prints its ports, then serves until it is killed."""

import sys
import threading
from concurrent import futures

import grpc

cancelled = threading.Semaphore(0)


def echo(request, context):
    context.set_trailing_metadata((("x-length", str(len(request))),))
    return request


def fail(request, context):
    context.abort(grpc.StatusCode.NOT_FOUND, "nothing here: ä%")


def count(request, context):
    for number in range(int(request)):
        yield str(number).encode()


def total(requests, context):
    return str(sum(len(request) for request in requests)).encode()


def chat(requests, context):
    for request in requests:
        yield b"re: " + request


def hang(request, context):
    context.add_callback(cancelled.release)
    threading.Event().wait(10)
    return b""


def was_cancelled(request, context):
    return b"yes" if cancelled.acquire(timeout=10) else b"no"


handlers = {
    "Echo": grpc.unary_unary_rpc_method_handler(echo),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Total": grpc.stream_unary_rpc_method_handler(total),
    "Chat": grpc.stream_stream_rpc_method_handler(chat),
    "Hang": grpc.unary_unary_rpc_method_handler(hang),
    "WasCancelled": grpc.unary_unary_rpc_method_handler(was_cancelled),
}
server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), options=[("grpc.max_receive_message_length", -1)])
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
plain = server.add_insecure_port("127.0.0.1:0")
key, certificate = (open(path, "rb").read() for path in sys.argv[1:3])
secure = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
server.start()
print(plain, secure, flush=True)
server.wait_for_termination()
