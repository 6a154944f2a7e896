"""A gRPC client: makes and checks calls of every kind; its argument is the server's address."""

import queue
import sys

import grpc

channel = grpc.insecure_channel(sys.argv[1], options=[("grpc.max_receive_message_length", -1)])
unary = lambda name: channel.unary_unary("/test.Test/" + name)

# Unary calls, many at once, with a trailing field.
calls = [unary("Echo").future(b"%d" % number, timeout=20) for number in range(200)]
assert [call.result() for call in calls] == [b"%d" % number for number in range(200)]
response, call = unary("Echo").with_call(b"abc", timeout=20)
assert response == b"abc" and ("x-length", "3") in call.trailing_metadata(), call.trailing_metadata()
assert call.code() == grpc.StatusCode.OK
assert unary("Echo")(b"", timeout=20) == b""

# Larger than any window, and compressed.
large = bytes(range(256)) * 16384
assert unary("Echo")(large, timeout=60) == large
assert unary("Echo")(large, timeout=60, compression=grpc.Compression.Gzip) == large

# A failure, with its message unchanged.
try:
    unary("Fail")(b"", timeout=20)
    assert False, "it has not failed"
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.NOT_FOUND and error.details() == "nothing here: ä%", error

# Streams: from the server, from the client, and both ways in lockstep.
stream = channel.unary_stream("/test.Test/Count")
assert [int(number) for number in stream(b"5000", timeout=60)] == list(range(5000))
total = channel.stream_unary("/test.Test/Total")
assert total((b"x" * 1000 for _ in range(3000)), timeout=60) == b"3000000"
asked = queue.Queue()
responses = channel.stream_stream("/test.Test/Chat")(iter(asked.get, None), timeout=60)
for number in range(100):
    asked.put(b"%d" % number)
    assert next(responses) == b"re: %d" % number
asked.put(None)
assert list(responses) == [] and responses.code() == grpc.StatusCode.OK

# A deadline: the client continues, and the server learns that the call was cancelled.
try:
    unary("Hang")(b"", timeout=0.3)
    assert False, "it has not timed out"
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
assert unary("WasCancelled")(b"", timeout=20) == b"yes"
print("all went well")
