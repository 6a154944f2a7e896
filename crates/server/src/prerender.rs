//! The renderer of a server: its folder, its sockets, and the upstreams that lead to it.
//!
//! ```text
//! crawler ── site ── cache ── proxy ── `render-…` ──> renderer ── `site-…` ──> the same site: the page, and what it loads
//! ```

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use flatout_engine::{Address, Listen};
use flatout_observe::metrics::Family;
#[cfg(feature = "prerender")]
use flatout_observe::metrics::{Kind, Value};
use flatout_prerender::Plan as RendererPlan;
#[cfg(feature = "prerender")]
use flatout_prerender::WarmPlan;
use flatout_proxy::{Address as ServerAddress, Server, Upstream};

use crate::live::Live;
use crate::plan::{Checked, Plan};
use crate::{Failure, prerender};

/// A renderer, and the sites whose pages it renders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrerenderPlan {
    /// The renderer.
    pub renderer: RendererPlan,
    /// The names of the sites.
    pub sites: Vec<String>,
}

/// Time of a request to the renderer beyond that of a page: the document before it, the queue, and the HTML after it.
const TIME_BESIDE_PAGE: Duration = Duration::from_secs(60);

/// Connections of one worker to the renderer, and requests that wait for one: each waits for a page.
const CONNECTIONS_MAX: usize = 256;

/// The folder of this process for sockets and profiles of browsers. Nobody else can guess its name.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let random = RandomState::new().hash_one(std::process::id());
        std::env::temp_dir().join(format!("flatout-prerender-{}-{random:016x}", std::process::id()))
    })
}

/// A socket of a site. A site keeps it for as long as the process runs.
fn socket(kind: &str, site: &str) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    site.hash(&mut hasher);
    folder().join(format!("{kind}-{:016x}", hasher.finish()))
}

/// The upstream that renders the pages of a site.
pub fn upstream(site: &str, renderer: &RendererPlan) -> Upstream {
    let server = Server::new(ServerAddress::Unix(socket("render", site)));
    let mut upstream = Upstream::new(&format!("prerender {site}"), vec![server]);
    upstream.connections_max = CONNECTIONS_MAX;
    upstream.queue_max = CONNECTIONS_MAX;
    upstream.read_time_max = renderer.page_time.saturating_mul(4) + TIME_BESIDE_PAGE;
    // The renderer repeats what can be repeated.
    upstream.retries_max = 0;
    upstream
}

/// The listeners at which the renderer's requests arrive, each with its site's index.
pub(crate) fn listens(plan: &Plan) -> Vec<(usize, Listen)> {
    let names = plan.prerender.iter().flat_map(|prerender| &prerender.sites);
    let sites = names.filter_map(|name| {
        let at = plan.sites.sites.iter().position(|site| site.name == *name)?;
        let listen = Listen::from(Address::Unix(socket("site", name)));
        Some((at, Listen { is_plain: true, ..listen }))
    });
    sites.collect()
}

/// Makes the folder, before anything is bound in it.
///
/// # Errors
/// The folder cannot be made.
pub(crate) fn prepare(checked: &Checked) -> Result<(), Failure> {
    if checked.plan().prerender.is_none() || folder().exists() {
        return Ok(());
    }
    if std::env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string()) {
        let message = "prerender: sockets of systemd (LISTEN_FDS) replace the server's own socket for its pages; let flatout bind its addresses, \
                       or switch prerender off";
        return Err(Failure::Usage(message.to_owned()));
    }
    // Browsers of a server that runs as root have another user, who has to pass.
    let made = std::fs::DirBuilder::new().mode(0o711).create(folder());
    let made = made.and_then(|()| match checked.plan().server.user.as_deref() {
        Some(user) => {
            let (uid, gid) = flatout_lane::process::user_ids(user)?;
            chown(folder(), Some(uid), Some(gid))
        }
        None => Ok(()),
    });
    made.map_err(|error| cannot(&error))
}

/// Whether an address is one of the renderer's, which nobody else is to use.
pub(crate) fn is_own(address: &Address) -> bool {
    matches!(address, Address::Unix(path) if path.starts_with(folder()))
}

/// Ends a renderer, and removes its folder, at the end of the process.
pub(crate) fn end(renderer: Option<&Renderer>) {
    if let Some(renderer) = renderer {
        renderer.end();
    }
    // Without a renderer there is none.
    let _ = std::fs::remove_dir_all(folder());
}

fn cannot(error: &io::Error) -> Failure {
    Failure::Run(format!("prerender: {}: {error}", prerender::folder().display()))
}

#[cfg(feature = "prerender")]
mod running {
    use flatout_prerender::{Renderer, SiteSockets};

    use super::{cannot, folder, socket};
    use crate::Failure;
    use crate::plan::Checked;

    /// The renderer of a plan, or that of the former plan, changed to this one.
    ///
    /// # Errors
    /// A thread cannot be started, or a socket not be bound.
    pub(crate) fn open(checked: &Checked, former: Option<&Renderer>) -> Result<Option<Renderer>, Failure> {
        let Some(plan) = &checked.plan().prerender else { return Ok(None) };
        let sockets =
            |name: &String| SiteSockets { renderer: socket("render", name), site: socket("site", name) };
        let sites: Vec<SiteSockets> = plan.sites.iter().map(sockets).collect();
        let renderer = match former {
            Some(former) => former.clone(),
            None => Renderer::start(folder().to_owned()).map_err(|error| cannot(&error))?,
        };
        renderer.change(&plan.renderer, &sites).map_err(|error| cannot(&error))?;
        Ok(Some(renderer))
    }
}

/// Renders pages before they are requested. `lines` has the agent, then the URL of a page or of a sitemap in each line; all have the same
/// scheme and host.
#[cfg(feature = "prerender")]
pub(crate) fn warm(live: &Live, lines: &str) -> Result<String, String> {
    let opened = live.opened();
    let renderer = opened.prerender.as_ref().ok_or_else(|| NO_RENDERER.to_owned())?;
    let mut lines = lines.lines();
    let agent =
        lines.next().filter(|agent| !agent.is_empty()).unwrap_or(flatout_prerender::WARM_AGENT).to_owned();
    let mut plans: Vec<WarmPlan> = Vec::new();
    for line in lines {
        let wrong = || {
            format!(
                "got `{line}`, need the URL of a page or of a sitemap, such as https://example.org/sitemap.xml"
            )
        };
        let (is_https, rest) = match (line.strip_prefix("https://"), line.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(wrong()),
        };
        let (authority, target) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let target = if target.is_empty() { "/" } else { target }.to_owned();
        let site = opened.sites.rendered_site(authority.as_bytes());
        let site = site.ok_or_else(|| format!("`{authority}`: no site with this host has `prerender`"))?;
        match plans.iter_mut().find(|plan| plan.is_https == is_https && plan.authority == authority) {
            Some(plan) => plan.targets.push(target),
            None => plans.push(WarmPlan {
                socket: socket("site", site),
                is_https,
                authority: authority.to_owned(),
                targets: vec![target],
                agent: agent.clone(),
            }),
        }
    }
    let mut coming = 0;
    for plan in plans {
        coming = renderer.warm(plan)?;
    }
    Ok(format!("warming up: {coming} pages and sitemaps to come"))
}

/// What a renderer does, in words.
#[cfg(feature = "prerender")]
pub(crate) fn status(live: &Live) -> Result<String, String> {
    let opened = live.opened();
    let figures = opened.prerender.as_ref().ok_or_else(|| NO_RENDERER.to_owned())?.figures();
    let outcomes = flatout_prerender::RenderOutcome::ALL.into_iter().zip(figures.outcomes);
    let outcomes: Vec<String> =
        outcomes.map(|(outcome, count)| format!("{} {count}", outcome.label())).collect();
    let rendered = figures.outcomes.iter().take(2).sum::<u64>().max(1);
    let page_ms = figures.page_time.as_millis() / u128::from(rendered);
    Ok(format!(
        "requests   {}\npages      {} open, {} waiting, {page_ms} ms each, {} MiB, {} killed for their memory\n\
         browsers   {} started\nfetched    {} requests of pages, and {} refused\nwarm-up    {} done, {} to come",
        outcomes.join(", "),
        figures.active,
        figures.waiting,
        figures.memory_bytes >> 20,
        figures.killed,
        figures.browsers,
        figures.requests.saturating_sub(figures.refused),
        figures.refused,
        figures.warmed,
        figures.warming,
    ))
}

#[cfg(not(feature = "prerender"))]
pub(crate) fn warm(_: &Live, _: &str) -> Result<String, String> {
    Err(NO_RENDERER.to_owned())
}

#[cfg(not(feature = "prerender"))]
pub(crate) fn status(_: &Live) -> Result<String, String> {
    Err(NO_RENDERER.to_owned())
}

const NO_RENDERER: &str = "this server renders no pages: no route has `prerender`";

/// The figures of a renderer for metrics.
#[cfg(feature = "prerender")]
pub(crate) fn collect(renderer: &Renderer, into: &mut Vec<Family>) {
    let figures = renderer.figures();
    let one = |kind, name, help, value| {
        let mut family = Family::new(name, kind, help);
        family.add(&[], value);
        family
    };
    let mut renders =
        Family::new("flatout_prerender_requests", Kind::Counter, "Requests to the renderer, by outcome");
    for (outcome, count) in flatout_prerender::RenderOutcome::ALL.into_iter().zip(figures.outcomes) {
        renders.add(&[("outcome", outcome.label())], Value::Count(count));
    }
    let mut times = Family::new(
        "flatout_prerender_milliseconds",
        Kind::Counter,
        "Milliseconds of the renderer's requests, by phase",
    );
    for (phase, time) in
        [("fetch", figures.fetch_time), ("wait", figures.wait_time), ("page", figures.page_time)]
    {
        times.add(&[("phase", phase)], Value::Count(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)));
    }
    let mut requests = Family::new(
        "flatout_prerender_page_requests",
        Kind::Counter,
        "Requests of rendered pages, by whether they were refused",
    );
    for (refused, count) in
        [("no", figures.requests.saturating_sub(figures.refused)), ("yes", figures.refused)]
    {
        requests.add(&[("refused", refused)], Value::Count(count));
    }
    into.extend([
        renders,
        times,
        requests,
        one(
            Kind::Gauge,
            "flatout_prerender_pages",
            "Pages that are being rendered",
            Value::Count(figures.active),
        ),
        one(
            Kind::Gauge,
            "flatout_prerender_waiting",
            "Requests that wait for a page",
            Value::Count(figures.waiting),
        ),
        one(
            Kind::Gauge,
            "flatout_prerender_memory_bytes",
            "Memory of pages",
            Value::Count(figures.memory_bytes),
        ),
        one(Kind::Counter, "flatout_prerender_browsers", "Browsers started", Value::Count(figures.browsers)),
        one(
            Kind::Counter,
            "flatout_prerender_killed_pages",
            "Pages killed because of their memory",
            Value::Count(figures.killed),
        ),
    ]);
}

#[cfg(not(feature = "prerender"))]
pub(crate) fn collect(_: &Renderer, _: &mut Vec<Family>) {}

#[cfg(not(feature = "prerender"))]
mod running {
    use crate::Failure;
    use crate::plan::Checked;

    /// What takes the renderer's place in a program without one.
    #[derive(Debug, Clone)]
    pub enum Renderer {}

    impl Renderer {
        pub(crate) fn end(&self) {}
    }

    pub(crate) fn open(checked: &Checked, _: Option<&Renderer>) -> Result<Option<Renderer>, Failure> {
        match checked.plan().prerender {
            None => Ok(None),
            Some(_) => Err(Failure::Usage(
                "prerender: this program was built without the feature `prerender`".to_owned(),
            )),
        }
    }
}

pub(crate) use running::open;

/// The renderer.
#[cfg(feature = "prerender")]
pub use flatout_prerender::Renderer;
#[cfg(not(feature = "prerender"))]
pub use running::Renderer;
