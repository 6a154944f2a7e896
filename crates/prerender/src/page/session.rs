//! The target of a page: opened in a browser context of its own, without cookies and storage of others, and closed with it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::browser::{Devtools, DevtoolsEvent, DevtoolsFault};

/// The page's window. It is tall, so that what is loaded when it becomes visible is visible at once.
const WINDOW: (u32, u32) = (1280, 4000);

/// How long closing a page may take; then the browser is replaced.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);

/// A page of a browser.
pub(crate) struct PageSession {
    pub(crate) devtools: Devtools,
    /// The session's id.
    pub(crate) id: String,
    pub(crate) frame: String,
    context: String,
    pub(crate) events: mpsc::Receiver<DevtoolsEvent>,
}

fn member(value: &Value, name: &str) -> Result<String, DevtoolsFault> {
    let text = value.get(name).and_then(Value::as_str);
    text.map(str::to_owned).ok_or_else(|| DevtoolsFault::Refused(format!("no `{name}` in its result")))
}

impl PageSession {
    /// Opens an empty page whose requests all pause.
    pub(crate) async fn open(devtools: &Devtools, is_hidden: bool) -> Result<PageSession, DevtoolsFault> {
        let context =
            devtools.command("", "Target.createBrowserContext", json!({ "disposeOnDetach": true })).await?;
        let context = member(&context, "browserContextId")?;
        match PageSession::open_in(devtools, &context, is_hidden).await {
            Ok(session) => Ok(session),
            Err(fault) => {
                let _ = devtools
                    .send("", "Target.disposeBrowserContext", json!({ "browserContextId": context }))
                    .await;
                Err(fault)
            }
        }
    }

    async fn open_in(
        devtools: &Devtools,
        context: &str,
        is_hidden: bool,
    ) -> Result<PageSession, DevtoolsFault> {
        let deny = json!({ "behavior": "deny", "browserContextId": context });
        devtools.send("", "Browser.setDownloadBehavior", deny).await?;
        // Hidden: without a window of the browser around it, which takes three times as long. There is no picture of such a page.
        let target = json!({ "url": "about:blank", "browserContextId": context, "hidden": is_hidden });
        // The id of a page's target is that of its main frame.
        let frame = member(&devtools.command("", "Target.createTarget", target).await?, "targetId")?;
        let attach = json!({ "targetId": frame, "flatten": true });
        let id = member(&devtools.command("", "Target.attachToTarget", attach).await?, "sessionId")?;
        let events = devtools.events(&id);
        let session =
            PageSession { devtools: devtools.clone(), id, frame, context: context.to_owned(), events };
        session.prepare().await?;
        Ok(session)
    }

    async fn prepare(&self) -> Result<(), DevtoolsFault> {
        self.intercept(&self.id).await?;
        self.send("Network.enable", json!({})).await?;
        self.send("Network.setBypassServiceWorker", json!({ "bypass": true })).await?;
        self.send(
            "Emulation.setDeviceMetricsOverride",
            json!({
                "width": WINDOW.0, "height": WINDOW.1, "deviceScaleFactor": 1, "mobile": false,
            }),
        )
        .await?;
        // Errors of scripts, which the preview shows.
        self.send("Runtime.enable", json!({})).await?;
        let before = json!({ "source": include_str!("before.js") });
        self.send("Page.addScriptToEvaluateOnNewDocument", before).await?;
        // Its result comes after those of all commands above.
        self.command("Page.enable", json!({})).await.map(drop)
    }

    /// Makes all requests of a target pause, and all targets that it makes wait for the same.
    pub(crate) async fn intercept(&self, session: &str) -> Result<(), DevtoolsFault> {
        let patterns = json!({ "patterns": [{ "urlPattern": "*", "requestStage": "Request" }] });
        self.devtools.send(session, "Fetch.enable", patterns).await?;
        let attach = json!({ "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true });
        self.devtools.send(session, "Target.setAutoAttach", attach).await
    }

    pub(crate) async fn command(&self, method: &str, params: Value) -> Result<Value, DevtoolsFault> {
        self.devtools.command(&self.id, method, params).await
    }

    pub(crate) async fn send(&self, method: &str, params: Value) -> Result<(), DevtoolsFault> {
        self.devtools.send(&self.id, method, params).await
    }

    /// Closes the page, with all that it has made. Returns whether the browser still responds.
    pub(crate) async fn close(self, is_hung: bool) -> bool {
        self.devtools.leave(&self.id);
        if is_hung {
            // Its process ends; those of other pages stay.
            let _ = self.send("Page.crash", json!({})).await;
        }
        let closed = async {
            // Before its context: the process of a hidden target would stay otherwise. One that has crashed may be gone.
            let _ = self.devtools.command("", "Target.closeTarget", json!({ "targetId": self.frame })).await;
            let dispose = json!({ "browserContextId": self.context });
            self.devtools.command("", "Target.disposeBrowserContext", dispose).await
        };
        matches!(timeout(CLOSE_TIME_MAX, closed).await, Ok(Ok(_)))
    }
}
