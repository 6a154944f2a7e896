//! Interim responses while a handler makes the final one.

use flatout_engine::{ExchangeKey, Lane};
use flatout_wire::Status;
use flatout_wire::field::{is_field_value, is_token};

use super::Extract;
use crate::{Context, Problem};

/// Sends interim responses 103 (Early Hints, RFC 8297) while the handler makes the response, so that a browser can
/// already load what the page needs.
///
/// For handlers that wait: hints of a handler that is ready at once would arrive together with the response, and are left
/// out. HTTP/1.0 clients get none.
///
/// ```
/// use flatout::{App, EarlyHints, Html};
///
/// # async fn render() -> String { String::new() }
/// let app = App::new().get("/", async |hints: EarlyHints| {
///     hints.send(&[("Link", "</style.css>; rel=preload; as=style")]);
///     Html(render().await)
/// });
/// ```
pub struct EarlyHints {
    key: ExchangeKey,
    lane: Option<Lane>,
}

impl EarlyHints {
    /// Sends an interim response with these fields. Invalid fields are left out. Returns whether the client is still
    /// connected.
    pub fn send(&self, fields: &[(&str, &str)]) -> bool {
        let mut lines = Vec::new();
        for (name, value) in fields {
            if is_token(name.as_bytes()) && is_field_value(value.as_bytes()) {
                lines.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
            }
        }
        self.lane.as_ref().is_some_and(|lane| lane.inform(self.key, Status::EARLY_HINTS, &lines))
    }
}

impl Extract for EarlyHints {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        Ok(EarlyHints { key: context.request.park(), lane: context.local.lane().cloned() })
    }
}
