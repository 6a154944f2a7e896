//! Why an address cannot be bound, and the next command.

use std::io::ErrorKind;

use flatout_engine::Address;
use flatout_owner::{Here, Holders, Listening, described};

/// Processes that are named.
const NAMED_MAX: usize = 3;

/// Ports below this one need a right, unless the system says otherwise (ip(7)).
const PORT_UNPRIVILEGED: u16 = 1024;

/// A message with what the operator of this machine can do.
pub(crate) fn explained(message: &str, address: &Address, kind: ErrorKind) -> String {
    match (address, kind) {
        (Address::Tcp(tcp), ErrorKind::AddrInUse) => format!("{message}\n{}", in_use(tcp.port())),
        (Address::Unix(path), ErrorKind::AddrInUse) => {
            format!("{message}\na process listens there: fuser {}", path.display())
        }
        (Address::Tcp(tcp), ErrorKind::PermissionDenied) if tcp.port() < PORT_UNPRIVILEGED => format!(
            "{message}\nports below {PORT_UNPRIVILEGED} need a right: start as root with --user NAME, or allow it once: \
             sudo setcap cap_net_bind_service=+ep {}, or use another port: --port 8080",
            program()
        ),
        (Address::Tcp(tcp), ErrorKind::AddrNotAvailable) => format!(
            "{message}\nno network interface of this machine has {}: `ip address` lists all; :{} listens on every one",
            tcp.ip(),
            tcp.port()
        ),
        _ => message.to_owned(),
    }
}

fn in_use(port: u16) -> String {
    let other = format!("use another port: --port {}", port.checked_add(1).unwrap_or(8080));
    let Ok(found) = Listening::find(&Here, port) else { return other };
    let pids = match found.holders(std::process::id()) {
        // A second address of this server, such as a clash of `listen` and `admin`, names no other process.
        Holders::Own => {
            return "this server listens there itself: two settings have the same address".to_owned();
        }
        Holders::Hidden => {
            return format!(
                "a process that only root can see holds port {port}: sudo ss -ltnp 'sport = :{port}'; or {other}"
            );
        }
        Holders::Others(pids) => pids,
    };
    let named: Vec<String> = pids.iter().take(NAMED_MAX).map(|pid| described(&Here, *pid)).collect();
    let more =
        if pids.len() > NAMED_MAX { format!(" and {} more", pids.len() - NAMED_MAX) } else { String::new() };
    let (noun, verb) = if pids.len() == 1 { ("process", "holds") } else { ("processes", "hold") };
    let ids: Vec<String> = pids.iter().take(NAMED_MAX).map(u32::to_string).collect();
    format!(
        "{noun} {}{more} {verb} port {port}; stop it: kill {}, or {other}",
        named.join(", "),
        ids.join(" ")
    )
}

fn program() -> String {
    std::env::current_exe().map_or_else(|_| "flatout".to_owned(), |path| path.display().to_string())
}
