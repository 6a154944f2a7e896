//! The renderer of a server: its folder, its sockets, and the upstreams that lead to it.
//!
//! ```text
//! crawler ── site ── cache ── proxy ── `render-…` ──> renderer ── `site-…` ──> the same site: the page, and what it loads
//! ```

#[cfg(feature = "prerender")]
mod commands;
mod folder;
#[cfg(feature = "prerender")]
mod metrics;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use flatout_engine::{Address, Listen};
use flatout_prerender::Plan as RendererPlan;
use flatout_proxy::{Address as ServerAddress, Server, Upstream};

use crate::Failure;
use crate::plan::{Checked, Plan};

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

/// A socket of a site. A site keeps it for as long as the process runs.
fn socket(kind: &str, site: &str) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    site.hash(&mut hasher);
    folder::path().join(format!("{kind}-{:016x}", hasher.finish()))
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
        // Pages of requests that are in progress may load more of the site, also during an upgrade.
        Some((at, Listen { is_plain: true, is_internal: true, ..listen }))
    });
    sites.collect()
}

/// Makes the folder, before anything is bound in it.
///
/// # Errors
/// The folder cannot be made.
pub(crate) fn prepare(checked: &Checked) -> Result<(), Failure> {
    if checked.plan().prerender.is_none() || folder::path().exists() {
        return Ok(());
    }
    if std::env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string()) {
        let message = "prerender: sockets of systemd (LISTEN_FDS) replace the server's own socket for its pages; let flatout bind its addresses, \
                       or switch prerender off";
        return Err(Failure::Usage(message.to_owned()));
    }
    folder::make(checked.plan().server.user.as_deref()).map_err(|error| cannot(&error))
}

/// Ends a renderer, and removes its folder, at the end of the process.
pub(crate) fn end(renderer: Option<&Renderer>) {
    if let Some(renderer) = renderer {
        renderer.end();
    }
    folder::remove();
}

/// The message of commands to a server without a renderer.
const NO_RENDERER: &str = "this server renders no pages: no route has `prerender`";

fn cannot(error: &io::Error) -> Failure {
    Failure::Run(format!("prerender: {}: {error}", folder::path().display()))
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
            None => Renderer::start(folder::path().to_owned()).map_err(|error| cannot(&error))?,
        };
        renderer.change(&plan.renderer, &sites).map_err(|error| cannot(&error))?;
        Ok(Some(renderer))
    }
}

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

    pub(crate) fn collect(_: &Renderer, _: &mut Vec<flatout_observe::metrics::Family>) {}

    pub(crate) fn snapshot(_: &Renderer) -> flatout_admin::upstreams::RendererSnapshot {
        Default::default()
    }

    pub(crate) fn warm(_: &crate::live::Live, _: &str) -> Result<String, String> {
        Err(super::NO_RENDERER.to_owned())
    }

    pub(crate) fn preview(_: &crate::live::Live, _: &str) -> Result<String, String> {
        Err(super::NO_RENDERER.to_owned())
    }

    pub(crate) fn status(_: &crate::live::Live) -> Result<String, String> {
        Err(super::NO_RENDERER.to_owned())
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

#[cfg(feature = "prerender")]
pub(crate) use commands::{preview, status, warm};
#[cfg(feature = "prerender")]
pub(crate) use metrics::{collect, snapshot};

/// The renderer.
#[cfg(feature = "prerender")]
pub use flatout_prerender::Renderer;
#[cfg(not(feature = "prerender"))]
pub use running::Renderer;
#[cfg(not(feature = "prerender"))]
pub(crate) use running::{collect, preview, snapshot, status, warm};
