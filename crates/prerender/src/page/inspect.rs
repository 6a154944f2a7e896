//! A page as a person sees it, and what a crawler reads of it: for previews.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::session::PageSession;
use crate::browser::{DevtoolsFault, text};

/// Time limit of both.
const INSPECT_TIME_MAX: Duration = Duration::from_secs(10);

/// Links to the page's own site that are listed.
const LINKS_MAX: usize = 40;

/// Characters of a text that is read from a page.
const TEXT_CHARACTERS_MAX: usize = 300;

/// The window of the picture, its height at most, and its scale.
const WINDOW: (u32, u32) = (1280, 900);
const HEIGHT_MAX: u64 = 6000;
const SCALE: f64 = 0.6;

/// Bytes of a picture.
const PICTURE_BYTES_MAX: usize = 2 << 20;

/// What is read of a page, in the order of `inspect.js`.
pub(crate) const PARTS: [&str; 10] = [
    "language",
    "title",
    "description",
    "canonical",
    "og:title",
    "og:description",
    "og:image",
    "og:url",
    "heading",
    "robots",
];

/// What `inspect.js` has read of the plain and of the rendered page.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inspected {
    pub(crate) plain: Vec<String>,
    pub(crate) rendered: Vec<String>,
    pub(crate) words: [u64; 2],
    pub(crate) links: [u64; 2],
    /// Path and query of links to the page's own site.
    pub(crate) own: Vec<String>,
    /// Pictures without a text.
    pub(crate) unnamed: u64,
    /// The height of the page, in CSS pixels.
    pub(crate) height: u64,
    /// A picture as JPEG; empty if the browser made none.
    pub(crate) picture: Vec<u8>,
}

impl Inspected {
    /// Reads the result of the script.
    pub(crate) fn of(value: &Value) -> Inspected {
        let number = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or_default();
        let texts = |name: &str| -> Vec<String> {
            let all = value.get(name).and_then(Value::as_array).into_iter().flatten();
            all.map(|text| text.as_str().unwrap_or_default().to_owned()).collect()
        };
        let pair = |name: &str| [0, 1].map(|at| number(value.get(name).and_then(|pair| pair.get(at))));
        Inspected {
            plain: texts("plain"),
            rendered: texts("rendered"),
            words: pair("words"),
            links: pair("links"),
            own: texts("own"),
            unnamed: number(value.get("unnamed")),
            height: number(value.get("height")),
            picture: Vec::new(),
        }
    }

    /// A part of the rendered page by its name in [`PARTS`].
    pub(crate) fn part(&self, name: &str) -> &str {
        let at = PARTS.iter().position(|part| *part == name);
        at.and_then(|at| self.rendered.get(at)).map(String::as_str).unwrap_or_default()
    }
}

/// Reads a page and makes a picture of it. A page that does not let itself be read has empty parts.
pub(crate) async fn inspect(session: &PageSession, plain: &str) -> Inspected {
    let inspected = timeout(INSPECT_TIME_MAX, read(session, plain)).await;
    let Ok(Ok(mut inspected)) = inspected else { return Inspected::default() };
    if let Ok(Ok(picture)) = timeout(INSPECT_TIME_MAX, picture(session, inspected.height)).await {
        inspected.picture = picture;
    }
    inspected
}

async fn read(session: &PageSession, plain: &str) -> Result<Inspected, DevtoolsFault> {
    let (width, height) = WINDOW;
    let window = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
    session.send("Emulation.setDeviceMetricsOverride", window).await?;
    let world = json!({ "frameId": session.frame, "worldName": "flatout preview" });
    let world = session.command("Page.createIsolatedWorld", world).await?;
    let script = include_str!("inspect.js").lines().filter(|line| !line.starts_with("//"));
    let script = script.collect::<Vec<_>>().join("\n");
    let (plain, limits) = (json!(plain), json!({ "characters": TEXT_CHARACTERS_MAX, "links": LINKS_MAX }));
    let evaluate = json!({
        "expression": format!("({script})({plain}, {limits})"), "returnByValue": true,
        "contextId": world.get("executionContextId").cloned().unwrap_or_default(),
    });
    let result = session.command("Runtime.evaluate", evaluate).await?;
    Ok(Inspected::of(result.pointer("/result/value").unwrap_or(&Value::Null)))
}

async fn picture(session: &PageSession, height: u64) -> Result<Vec<u8>, DevtoolsFault> {
    let height = height.clamp(u64::from(WINDOW.1), HEIGHT_MAX);
    let capture = json!({
        "format": "jpeg", "quality": 70, "captureBeyondViewport": true,
        "clip": { "x": 0, "y": 0, "width": WINDOW.0, "height": height, "scale": SCALE },
    });
    let captured = session.command("Page.captureScreenshot", capture).await?;
    let picture = BASE64_STANDARD.decode(text(&captured, "data")).unwrap_or_default();
    Ok(if picture.len() > PICTURE_BYTES_MAX { Vec::new() } else { picture })
}
