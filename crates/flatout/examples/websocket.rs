//! Echoes text and binary messages on `/`: `websocket --listen 127.0.0.1:8080 --workers 1`.

use flatout::{App, WebSocketPlan};

/// Bytes of one message, and its fragments: what suites of conformance send at the most.
const MESSAGE_BYTES_MAX: u64 = 32 << 20;
const FRAGMENTS_MAX: u32 = 1 << 20;

fn main() -> std::process::ExitCode {
    let mut plan = WebSocketPlan { unsent_bytes_max: 64 << 20, ..WebSocketPlan::default() };
    plan.limits.message_bytes_max = MESSAGE_BYTES_MAX;
    plan.limits.fragments_max = FRAGMENTS_MAX;
    let app = App::new()
        .websocket_with("/", plan, |socket, message| socket.send(message))
        .listen("127.0.0.1:8080")
        .arguments();
    flatout::exit(app.run())
}
