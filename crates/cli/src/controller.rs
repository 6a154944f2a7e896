//! `flatout controller`: serves what Kubernetes objects demand.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Arg, ArgAction, ArgMatches, ValueHint, value_parser};
use flatout_controller::cluster::{self, Leadership, Leading};
use flatout_controller::{
    BasePlan, CONTROLLER_NAME, ControllerCredentials, Leader, PlanListener, Settings, StatusUpdate,
    StatusWriter, Store, folder, log_faults, publish, serve,
};
use flatout_engine::Address;
use flatout_engine::tls::Identity;
use flatout_lane::process::host_name;
use flatout_server::Plan;

use crate::Failure;
use crate::command::{Command, VERSION};
use crate::serve::welcome;

pub(crate) const COMMAND: Command = Command {
    name: "controller",
    about: "Serve what Kubernetes objects demand: Gateway API and Ingress",
    more: "Changes of endpoints are applied without a reload, all others with one that loses no request. A mistake in an object is \
           reported and leaves the others; whatever fails, the last plan that worked is served. With --plans, it serves no requests \
           itself: any number of `flatout data-plane` get their plans from it.\n\
           Exit status: 0 after a signal, 1 after a failure at run time, 2 for wrong usage.",
    examples: &[
        ("flatout controller", "in a pod: the objects of its cluster; see docs/kubernetes.md"),
        ("KUBECONFIG=~/.kube/config flatout controller", "the objects of a cluster, served by this machine"),
        (
            "flatout controller --dir ./objects --address 127.0.0.1",
            "objects of YAML files, without a cluster",
        ),
        (
            "flatout controller --plans 0.0.0.0:8082 --plans-certificate tls.crt --plans-key tls.key --token-file token",
            "plans for data planes, which serve the requests",
        ),
    ],
    arguments,
    run,
};

/// Where certificates of Secrets are kept by default; only this user may read them.
const STATE_DEFAULT: &str = "/run/flatout-controller";

/// The Lease of the manifests.
const LEASE_DEFAULT: &str = "flatout-system/flatout-controller";

/// A flag with a value.
pub(crate) fn option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

/// Where the process itself can be asked.
pub(crate) fn health() -> Arg {
    option("health", "IP:PORT", "Where /healthz and /readyz are served")
        .value_parser(value_parser!(SocketAddr))
        .default_value("0.0.0.0:8081")
}

pub(crate) fn admin() -> Arg {
    option("admin", "ADDR", "Where to serve metrics and the live page: unix:PATH or a loopback address")
}

pub(crate) fn workers() -> Arg {
    option("workers", "N", "Threads [default: one for each CPU]").value_parser(value_parser!(u16).range(1..))
}

fn arguments(command: clap::Command) -> clap::Command {
    command
        .arg(
            option(
                "dir",
                "DIR",
                "Objects from the YAML files of this folder, which is followed [default: the API server]",
            )
            .value_hint(ValueHint::DirPath),
        )
        .arg(
            option(
                "address",
                "IP",
                "Where gateways are bound; can be repeated, then each gateway gets one of its own",
            )
            .value_parser(value_parser!(IpAddr))
            .action(ArgAction::Append)
            .default_value("0.0.0.0"),
        )
        .arg(
            option("publish", "ADDRESS", "The address in the status of gateways; can be repeated")
                .action(ArgAction::Append),
        )
        .arg(health())
        .arg(
            option("controller-name", "NAME", "The name in the classes that this controller serves")
                .default_value(CONTROLLER_NAME),
        )
        .arg(
            option("certificates", "DIR", "The folder for certificates of Secrets")
                .default_value(STATE_DEFAULT)
                .value_hint(ValueHint::DirPath),
        )
        .arg(
            option(
                "lease",
                "NAMESPACE/NAME",
                "The Lease whose holder writes statuses, if there are several processes",
            )
            .default_value(LEASE_DEFAULT),
        )
        .arg(admin())
        .arg(
            option(
                "plans",
                "IP:PORT",
                "Where data planes get their plans; then this process serves no requests",
            )
            .value_parser(value_parser!(SocketAddr))
            .requires_all(["plans-certificate", "plans-key", "token-file"]),
        )
        .args(
            [
                option("plans-certificate", "FILE", "The certificate for data planes (PEM)"),
                option("plans-key", "FILE", "Its key"),
                option("token-file", "FILE", "The token that data planes must show: at least 16 bytes"),
            ]
            .map(|argument| argument.requires("plans").value_hint(ValueHint::FilePath)),
        )
        .arg(workers())
}

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let settings = Settings {
        controller_name: text("controller-name").unwrap_or_default(),
        addresses: matches.get_many("address").unwrap_or_default().copied().collect(),
        published: matches.get_many("publish").unwrap_or_default().cloned().collect(),
        health: matches.get_one("health").copied(),
        refused: Default::default(),
        assigned: Default::default(),
        folder: PathBuf::from(text("certificates").unwrap_or_default()),
    };
    let base = base(matches)?;
    let store = Arc::new(Store::default());
    let mut log = log_faults();
    let Leading { write, leader } = match text("dir") {
        Some(dir) => {
            folder::follow(Path::new(&dir), store.clone()).map_err(Failure::Usage)?;
            Leading { write: Box::new(log), leader: Arc::new(Leader::always()) }
        }
        None => {
            let leadership = leadership(&text("lease").unwrap_or_default(), &settings)?;
            let Leading { mut write, leader } =
                cluster::follow(store.clone(), leadership).map_err(Failure::Usage)?;
            let write: StatusWriter = Box::new(move |statuses: &[Arc<StatusUpdate>]| {
                log(statuses);
                write(statuses);
            });
            Leading { write, leader }
        }
    };
    let path = |name: &str| PathBuf::from(text(name).unwrap_or_default());
    let started = match matches.get_one::<SocketAddr>("plans") {
        None => serve(store, settings, base, write, leader.clone(), VERSION),
        Some(address) => {
            let identity = Identity::new(path("plans-certificate"), path("plans-key"));
            let credentials = ControllerCredentials { identity, token: path("token-file") };
            let listener = PlanListener { address: *address, credentials, leader: leader.clone() };
            publish(store, settings, base, write, VERSION, listener)
        }
    };
    let result = started.and_then(|started| started.run(Some(&welcome::welcome)));
    // However it ends, another process can lead at once.
    leader.retire();
    Ok(result?)
}

/// The part of a plan that does not come from objects.
pub(crate) fn base(matches: &ArgMatches) -> Result<BasePlan, Failure> {
    let admin = matches.get_one::<String>("admin").map(|text| text.parse()).transpose();
    let admin: Option<Address> = admin.map_err(|why: String| Failure::Usage(format!("--admin: {why}")))?;
    let workers = matches.get_one::<u16>("workers").map(|count| usize::from(*count));
    Ok(Box::new(move || {
        let mut plan = Plan { admin: admin.iter().cloned().collect(), ..Plan::default() };
        plan.server.listen.clear();
        plan.server.workers = workers;
        plan
    }))
}

/// How this process is known to others: in a pod, its host name is the pod's.
fn leadership(lease: &str, settings: &Settings) -> Result<Leadership, Failure> {
    let Some((namespace, name)) =
        lease.split_once('/').filter(|(one, other)| !one.is_empty() && !other.is_empty())
    else {
        return Err(Failure::Usage(format!("--lease: got `{lease}`, need NAMESPACE/NAME")));
    };
    Ok(Leadership {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        identity: format!("{}-{}", host_name(), std::process::id()),
        controller_name: settings.controller_name.clone(),
    })
}
