//! Renders one page.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::html::serialize;
use super::inspect::inspect;
use super::requests::{Paused, Settled, fulfill, refuse};
use super::result::{Document, FailedRequest, PageFault, PageResult, Rendered, Times};
use super::session::PageSession;
use crate::browser::{Devtools, DevtoolsEvent, DevtoolsFault, text};
use crate::origins::AllowedOrigin;
use crate::walls::{Fetched, Fetcher, Ruling};

/// Requests of one page; further ones are refused.
const REQUESTS_MAX: u32 = 500;

/// Frames and workers of one page; with more of them, the page ends.
const TARGETS_MAX: u32 = 64;

/// How often a page may load itself again.
const RELOADS_MAX: u32 = 3;

/// Errors of a page's scripts that are reported, and the length of each.
const ERRORS_MAX: usize = 20;
const ERROR_CHARACTERS_MAX: usize = 500;

/// Requests of a page that are listed because they failed, and the length of each URL.
const FAILED_MAX: usize = 40;
const URL_CHARACTERS_MAX: usize = 300;

/// How often a page that is not ready is asked again.
const READY_PERIOD: Duration = Duration::from_millis(100);

/// The path of a request by which the page shows that it has got all responses before; it never gets to the site.
const BARRIER_PATH: &str = "/.well-known/flatout-prerender-barrier";

type Probe = Pin<Box<dyn Future<Output = Result<Value, DevtoolsFault>> + Send>>;

/// A page while it loads.
struct Visit<'a> {
    session: PageSession,
    document: &'a Document,
    fetcher: Arc<Fetcher>,
    allow: &'a [AllowedOrigin],
    fetches: JoinSet<Settled>,
    documents: u32,
    targets: u32,
    quiet_since: Instant,
    /// It is asked whether it is finished.
    is_probing: bool,
    moved: Option<String>,
    rendered: Rendered,
}

/// Renders a page. The second value is whether the browser is still good.
pub(crate) async fn visit(
    devtools: &Devtools,
    document: &Document,
    fetcher: Arc<Fetcher>,
    allow: &[AllowedOrigin],
    times: Times,
) -> (Result<PageResult, PageFault>, bool) {
    let deadline = Instant::now() + times.page;
    let session = match PageSession::open(devtools, !document.is_preview).await {
        Ok(session) => session,
        Err(fault) => return (Err(fault.into()), false),
    };
    let mut visit = Visit {
        session,
        document,
        fetcher,
        allow,
        fetches: JoinSet::new(),
        documents: 0,
        targets: 0,
        quiet_since: Instant::now(),
        is_probing: true,
        moved: None,
        rendered: Rendered::default(),
    };
    let result = visit.run(deadline, times.idle).await;
    let is_hung = matches!(result, Err(PageFault::Hung | PageFault::Flooded | PageFault::Large));
    let is_good = visit.session.close(is_hung).await;
    (result, is_good)
}

impl Visit<'_> {
    async fn run(&mut self, deadline: Instant, idle: Duration) -> Result<PageResult, PageFault> {
        let navigate = self.navigation();
        self.rendered.is_late = !self.load(navigate, deadline, idle).await?;
        if let Some(url) = self.moved.take() {
            return Ok(PageResult::Moved(url));
        }
        let is_late = self.rendered.is_late;
        // Scripts that do not return end with the HTML.
        if self.document.is_preview && !is_late {
            self.inspect().await;
        }
        serialize(&mut self.session, &mut self.rendered).await?;
        if self.document.is_preview && is_late {
            self.inspect().await;
        }
        Ok(PageResult::Rendered(std::mem::take(&mut self.rendered)))
    }

    async fn inspect(&mut self) {
        let plain = String::from_utf8_lossy(&self.document.fetched.body);
        self.rendered.inspected = Some(Box::new(inspect(&self.session, &plain).await));
    }

    /// Lists a request without a good response.
    fn list(&mut self, failed: FailedRequest) {
        // The browser requests it by itself.
        let is_icon = failed.url.ends_with("/favicon.ico");
        if self.rendered.failed.len() < FAILED_MAX && !is_icon {
            let url = failed.url.chars().take(URL_CHARACTERS_MAX).collect();
            self.rendered.failed.push(FailedRequest { url, ..failed });
        }
    }

    /// The command that loads the page. It has no result until the document has come.
    fn navigation(&self) -> Probe {
        let (devtools, id) = (self.session.devtools.clone(), self.session.id.clone());
        let params = json!({ "url": self.document.url });
        Box::pin(async move { devtools.command(&id, "Page.navigate", params).await })
    }

    /// Asks the page whether it is finished, once it has got all responses. While its scripts run, there is no result.
    fn readiness(&self) -> Probe {
        let (devtools, id, frame) =
            (self.session.devtools.clone(), self.session.id.clone(), self.session.frame.clone());
        Box::pin(async move {
            // In a world of its own: the page may have replaced what it uses.
            let world = json!({ "frameId": frame, "worldName": "flatout" });
            let world = devtools.command(&id, "Page.createIsolatedWorld", world).await?;
            let barrier = json!({
                "expression": include_str!("barrier.js").replace("BARRIER", BARRIER_PATH), "awaitPromise": true,
                "contextId": world.get("executionContextId").cloned().unwrap_or_default(),
            });
            devtools.command(&id, "Runtime.evaluate", barrier).await?;
            let ready = json!({ "expression": include_str!("ready.js"), "returnByValue": true });
            devtools.command(&id, "Runtime.evaluate", ready).await
        })
    }

    /// Serves the page's requests until it is finished. Returns false at its deadline.
    async fn load(&mut self, mut probe: Probe, deadline: Instant, idle: Duration) -> Result<bool, PageFault> {
        let mut is_navigating = true;
        self.quiet_since = Instant::now();
        loop {
            let is_quiet = self.fetches.is_empty() && !self.is_probing;
            let wake = if is_quiet { (self.quiet_since + idle).min(deadline) } else { deadline };
            tokio::select! {
                event = self.session.events.recv() => {
                    let event = event.ok_or_else(|| self.ended())?;
                    self.handle(event).await?;
                    if self.moved.is_some() {
                        return Ok(true);
                    }
                }
                Some(settled) = self.fetches.join_next(), if !self.fetches.is_empty() => {
                    match settled {
                        Ok(Settled::Lost) => return Err(PageFault::Lost),
                        Ok(Settled::Failed(failed)) => self.list(failed),
                        Ok(Settled::Done) | Err(_) => {}
                    }
                    self.quiet_since = Instant::now();
                }
                result = &mut probe, if self.is_probing => {
                    self.is_probing = false;
                    let is_ready = result.map_or_else(probe_failed, |result| {
                        result.pointer("/result/value").and_then(Value::as_bool).unwrap_or_default()
                    });
                    let is_over = self.fetches.is_empty() && self.quiet_since + idle <= Instant::now();
                    if std::mem::take(&mut is_navigating) {
                        self.quiet_since = Instant::now();
                    } else if is_ready && is_over {
                        return Ok(true);
                    } else if !is_ready {
                        self.quiet_since = self.quiet_since.max(Instant::now() + READY_PERIOD - idle.max(READY_PERIOD));
                    }
                }
                () = sleep_until(wake) => {
                    if wake >= deadline {
                        return Ok(false);
                    }
                    (probe, self.is_probing) = (self.readiness(), true);
                }
            }
        }
    }

    /// Why there are no more events.
    fn ended(&self) -> PageFault {
        if self.session.devtools.is_closed() { PageFault::Browser } else { PageFault::Flooded }
    }

    async fn handle(&mut self, event: DevtoolsEvent) -> Result<(), PageFault> {
        match event.method.as_str() {
            "Fetch.requestPaused" => self.request(Paused::of(event.session, &event.params)).await?,
            "Target.attachedToTarget" => self.attached(&event.params).await?,
            "Inspector.targetCrashed" if event.session == self.session.id => return Err(PageFault::Crashed),
            "Page.javascriptDialogOpening" => {
                let close = json!({ "accept": false });
                self.session.devtools.send(&event.session, "Page.handleJavaScriptDialog", close).await?;
            }
            "Runtime.exceptionThrown" if self.rendered.errors.len() < ERRORS_MAX => {
                let details = event.params.get("exceptionDetails").unwrap_or(&Value::Null);
                let described = details.pointer("/exception/description").and_then(Value::as_str);
                let message = described.unwrap_or_else(|| text(details, "text"));
                self.rendered.errors.push(message.chars().take(ERROR_CHARACTERS_MAX).collect());
            }
            _ => {}
        }
        Ok(())
    }

    /// A frame, a worker or a popup of the page.
    async fn attached(&mut self, params: &Value) -> Result<(), PageFault> {
        self.targets += 1;
        if self.targets > TARGETS_MAX {
            return Err(PageFault::Flooded);
        }
        let info = params.get("targetInfo").unwrap_or(&Value::Null);
        let devtools = &self.session.devtools;
        match text(info, "type") {
            "iframe" | "worker" | "shared_worker" => {
                let session = text(params, "sessionId");
                devtools.join(session, &self.session.id);
                self.session.intercept(session).await?;
                devtools.send(session, "Runtime.runIfWaitingForDebugger", json!({})).await?;
            }
            _ => {
                devtools.send("", "Target.closeTarget", json!({ "targetId": text(info, "targetId") })).await?
            }
        }
        Ok(())
    }

    async fn request(&mut self, paused: Paused) -> Result<(), PageFault> {
        let devtools = self.session.devtools.clone();
        if paused.kind == "Document"
            && paused.frame == self.session.frame
            && paused.session == self.session.id
        {
            return self.document(paused).await;
        }
        if self.is_probing && path_of(&paused.url) == BARRIER_PATH {
            let empty = Fetched { status: 204, fields: HeaderMap::new(), body: Bytes::new() };
            return Ok(fulfill(&devtools, &paused.session, &paused.id, &empty).await?);
        }
        self.rendered.requests += 1;
        let ruling = match self.rendered.requests > REQUESTS_MAX {
            true => Ruling::Refuse("requests"),
            false => paused.ruling(&self.fetcher, self.allow, self.document.is_preview),
        };
        if let Ruling::Refuse(reason) = ruling {
            self.rendered.refused += 1;
            self.list(FailedRequest { url: paused.url.clone(), reason: reason.to_owned(), is_walled: true });
        }
        match ruling {
            Ruling::Fetch(_) => {
                self.fetches.spawn(paused.settle(ruling, devtools, self.fetcher.clone()));
            }
            _ => drop(paused.settle(ruling, devtools, self.fetcher.clone()).await),
        }
        Ok(())
    }

    /// The page itself: its document is there already. If it goes elsewhere, that is a redirect.
    async fn document(&mut self, paused: Paused) -> Result<(), PageFault> {
        let devtools = &self.session.devtools;
        if without_fragment(&paused.url) != without_fragment(&self.document.url) {
            refuse(devtools, &paused.session, &paused.id).await?;
            if paused.url.starts_with("https://") || paused.url.starts_with("http://") {
                self.moved = Some(paused.url);
            }
            return Ok(());
        }
        self.documents += 1;
        if self.documents > RELOADS_MAX {
            return Err(PageFault::Reloads);
        }
        fulfill(devtools, &paused.session, &paused.id, &self.document.fetched).await?;
        self.quiet_since = Instant::now();
        Ok(())
    }
}

/// While a document is replaced by another one, there is no world to ask.
fn probe_failed(_: DevtoolsFault) -> bool {
    false
}

/// The path of a URL; empty if it has none.
fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    rest.find('/').and_then(|at| rest.get(at..)).unwrap_or_default()
}

fn without_fragment(url: &str) -> &str {
    url.split('#').next().unwrap_or(url)
}
