//! The HTML of a page.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::result::{PageFault, Rendered};
use super::session::PageSession;
use crate::browser::text;

/// Time limit of the page's HTML, after its deadline too.
const SERIALIZE_TIME_MAX: Duration = Duration::from_secs(5);

/// Largest HTML, in UTF-16 code units, and its elements.
const HTML_CHARACTERS_MAX: usize = 8 << 20;
const ELEMENTS_MAX: usize = 200_000;

/// Takes the page's HTML, from a world that its scripts do not reach.
pub(crate) async fn serialize(session: &mut PageSession, rendered: &mut Rendered) -> Result<(), PageFault> {
    let serialized = timeout(SERIALIZE_TIME_MAX, evaluate(session, rendered.is_late)).await;
    let value = match serialized {
        Ok(value) => value?,
        Err(_) => return Err(PageFault::Hung),
    };
    match text(&value, "fault") {
        "" => {}
        _ => return Err(PageFault::Large),
    }
    let status = value.get("status").and_then(Value::as_u64).unwrap_or_default();
    rendered.status = u16::try_from(status).unwrap_or_default();
    let fields = value.get("headers").and_then(Value::as_array).into_iter().flatten();
    rendered.fields = fields.filter_map(Value::as_str).map(str::to_owned).collect();
    rendered.html = text(&value, "html").to_owned();
    Ok(())
}

async fn evaluate(session: &mut PageSession, is_late: bool) -> Result<Value, PageFault> {
    if is_late {
        // Scripts that do not return end here. Those of other worlds and later ones go on.
        session.send("Runtime.terminateExecution", json!({})).await?;
    }
    let result = {
        let command = async {
            let world = json!({ "frameId": session.frame, "worldName": "flatout" });
            let world = session.command("Page.createIsolatedWorld", world).await?;
            let limits = json!({ "elements": ELEMENTS_MAX, "characters": HTML_CHARACTERS_MAX });
            let expression = format!("({})({limits})", without_comments(include_str!("serialize.js")));
            let evaluate = json!({
                "expression": expression, "returnByValue": true,
                "contextId": world.get("executionContextId").cloned().unwrap_or_default(),
            });
            session.command("Runtime.evaluate", evaluate).await
        };
        command.await
    };
    // A page that crashed meanwhile has sent it.
    while let Ok(event) = session.events.try_recv() {
        if event.method == "Inspector.targetCrashed" {
            return Err(PageFault::Crashed);
        }
    }
    let result = result?;
    if let Some(exception) = result.get("exceptionDetails") {
        return Err(PageFault::Refused(text(exception, "text").to_owned()));
    }
    Ok(result.pointer("/result/value").cloned().unwrap_or_default())
}

/// The script as an expression.
fn without_comments(script: &str) -> String {
    script.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}
