//! The output of `flatout tune`: the summary screen, and a tuning's manual page. Findings in, text out.

use flatout_tune::{About, Advice, Finding, Needs, Planned, Risk, Scope, Unknown};

/// The screen: costly settings, the largest expected gain first and those of high risk last, and the commands. `width` is the terminal's; other
/// output is not shortened.
pub(super) fn screen(findings: &[Finding], all: bool, width: Option<usize>, flags: &Flags) -> String {
    let mut advised: Vec<&Finding> = findings.iter().filter(|finding| finding.is_shown_to_cost()).collect();
    // Nobody begins with what opens the machine to attacks.
    let is_dangerous = |finding: &Finding| matches!(finding.about.risk, Risk::High | Risk::Grave);
    advised.sort_by_key(|finding| is_dangerous(finding));
    let others = advised.iter().filter(|finding| !is_dangerous(finding)).count();
    let first = if advised.len() > FIRST { FIRST.min(others) } else { 0 };
    let possible: Vec<&Finding> = findings.iter().filter(|finding| finding.is_merely_possible()).collect();
    let fine: Vec<&Finding> = findings
        .iter()
        .filter(|finding| matches!(finding.advice, Ok(Advice::Fine)) && finding.value.is_ok())
        .collect();
    let unknown: Vec<(&str, String)> =
        findings.iter().filter_map(|finding| Some((finding.about.name, why_unknown(finding)?))).collect();
    let columns = Columns::new(findings, width);
    let mut text = match advised.is_empty() {
        true => "nothing to suggest here\n".to_owned(),
        false if first > 0 => format!(
            "start with {}\n{}",
            if first == 1 { "this one".to_owned() } else { format!("these {first}") },
            columns.line("setting", "risk", "scope", "current", "suggested")
        ),
        false => columns.line("setting", "risk", "scope", "current", "suggested"),
    };
    let line = |finding: &Finding| {
        let about = finding.about;
        let is_now = finding.value.as_deref().unwrap_or("?");
        let risk = if is_change(finding) { about.risk.name() } else { "by hand" };
        let help = advice(finding).unwrap_or_default();
        let shown = finding.moved.as_ref().filter(|moved| moved.by > 0.0).map(|moved| match moved.is_rate {
            true => format!(" ({} {:.1}/s)", moved.counter, moved.by),
            false => format!(" ({} {} since boot)", moved.counter, moved.by),
        });
        let help = format!("{help}{}", shown.unwrap_or_default());
        columns.line(about.name, risk, about.scope.name(), is_now, &help)
    };
    for (at, finding) in advised.iter().enumerate() {
        if at == first && first > 0 {
            text.push_str("\nthen\n");
        }
        text.push_str(&line(finding));
    }
    if all {
        if !possible.is_empty() {
            text.push_str("\npossible, without a sign that it is needed (for some only a climb can tell)\n");
            possible.iter().for_each(|finding| text.push_str(&line(finding)));
        }
        text.push_str("\nfine\n");
        for finding in fine {
            let is_now = finding.value.as_deref().unwrap_or("?");
            text.push_str(&hanging(
                finding.about.name,
                columns.name + GAP.len(),
                is_now,
                width.unwrap_or(usize::MAX),
            ));
        }
        text.push_str("\nunknown here\n");
        for (why, names) in by_reason(unknown) {
            text.push_str(&hanging("", 0, &format!("{why}:"), width.unwrap_or(usize::MAX)));
            text.push_str(&hanging("", 2, &names.join(", "), width.unwrap_or(MANUAL_WIDTH)));
        }
    } else {
        text.push_str(&format!(
            "\n{} more are fine, {} merely possible, {} unknown here (--all lists them)\n",
            fine.len(),
            possible.len(),
            unknown.len()
        ));
        text.push_str(if flags.served.is_empty() { "--port N names the server\n" } else { "" });
    }
    let low = |findings: &[&Finding]| {
        findings.iter().filter(|finding| is_change(finding) && finding.about.risk == Risk::Low).count()
    };
    text.push_str(&commands(low(&advised), low(&possible), flags));
    text
}

/// Groups names by reason, in the order of the reasons.
fn by_reason(unknown: Vec<(&str, String)>) -> Vec<(String, Vec<&str>)> {
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for (name, why) in unknown {
        match reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, names)) => names.push(name),
            None => reasons.push((why, vec![name])),
        }
    }
    reasons
}

/// Where a list of names is wrapped without a terminal.
const MANUAL_WIDTH: usize = 100;

/// Settings shown at the top, for readers in a hurry.
const FIRST: usize = 3;

/// The suggested commands.
fn commands(advised: usize, possible: usize, flags: &Flags) -> String {
    let Flags { served, place } = flags;
    let flags = format!("{served}{place}");
    let commands = [
        (format!("apply --low-risk{flags}"), low_risk(advised)),
        (format!("apply --low-risk --possible{flags}"), merely_possible(possible)),
        (format!("apply NAME{flags}"), "make one, if its risk is acceptable".to_owned()),
        (format!("explain NAME{flags}"), "show why, its risk and what it changes".to_owned()),
        (format!("undo{place}"), "restore everything".to_owned()),
    ];
    let width = commands.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    let lines = commands.iter().filter(|(_, does)| !does.is_empty());
    let lines = lines.map(|(command, does)| format!("flatout tune {command:<width$}  {does}\n"));
    format!("\n{}", lines.collect::<String>())
}

/// The effect of `apply --low-risk` here.
fn low_risk(advised: usize) -> String {
    match advised {
        0 => "make the low-risk changes above: there are none here".to_owned(),
        1 => "make the low-risk change above".to_owned(),
        all => format!("make the {all} low-risk changes above"),
    }
}

/// The effect of `--possible` here; empty if it has none.
fn merely_possible(possible: usize) -> String {
    match possible {
        0 => String::new(),
        1 => "and a possible one (see --all)".to_owned(),
        all => format!("and {all} possible ones (see --all)"),
    }
}

/// A tuning's manual page.
pub(super) fn manual(
    about: &About,
    stands: &TuningText,
    planned: Option<&Planned>,
    width: usize,
    flags: &Flags,
) -> String {
    let Flags { served, place } = flags;
    let mut text = hanging(&format!("{}:", about.name), about.name.len() + 2, about.reason, width);
    text.push('\n');
    text.push_str(&hanging("", 0, about.detail, width));
    text.push('\n');
    let mut field = |name: &str, value: &str| text.push_str(&hanging(name, FIELD_COLUMNS, value, width));
    field("source", about.source);
    let places = places(about.source);
    if !places.is_empty() {
        field("", &places.join(" "));
    }
    field("scope", scope(about.scope));
    field("risk", about.risk.name());
    if !about.lost.is_empty() {
        field("lost", about.lost);
    }
    field("current", &stands.value);
    field("suggested", &stands.advice);
    field("counter", &stands.effect);
    field("measurable", measured(about.needs, stands.is_measurable));
    let Some(planned) = planned else { return text };
    let accept = if about.risk == Risk::Grave { " --accept-risk" } else { "" };
    field("apply", &format!("flatout tune apply {}{accept}{served}{place}", about.name));
    field("undo", &format!("flatout tune undo {}{place}", about.name));
    text.push_str("\nchanges\n");
    for change in &planned.changes {
        text.push_str(&hanging("", 2, &format!("{} to {}", change.setting.name(), change.to.line()), width));
    }
    if !planned.then.is_empty() {
        text.push_str(&format!("and then\n{}", hanging("", 2, &planned.then, width)));
    }
    for document in &planned.documents {
        text.push_str(&format!("\n--persist writes {}\n", document.path));
        document.text.lines().for_each(|line| text.push_str(&format!("  {line}\n")));
    }
    if !planned.not_kept.is_empty() {
        text.push_str("\nnot kept after a reboot\n");
    }
    planned.not_kept.iter().for_each(|reason| text.push_str(&hanging("", 2, reason, width)));
    text
}

/// The kernel's documentation: its parts are named by their paths.
const KERNEL_DOCS: &str = "https://docs.kernel.org/";

/// Parts of it by the names that sources use: the beginning of a path, or a name and its path.
const KERNEL_PARTS: [(&str, &str); 10] = [
    ("networking/", ""),
    ("admin-guide/", ""),
    ("accounting/", ""),
    ("scheduler/", ""),
    ("trace/", ""),
    ("ip-sysctl", "networking/ip-sysctl"),
    ("nf_conntrack-sysctl", "networking/nf_conntrack-sysctl"),
    ("cgroup-v2", "admin-guide/cgroup-v2"),
    ("kernel napi.rst", "networking/napi"),
    ("napi.rst", "networking/napi"),
];

/// Publications by author and year.
const PUBLICATIONS: [(&str, &str); 2] = [
    (
        "Richards 2021",
        "Marc Richards, Extreme HTTP Performance Tuning: https://talawah.io/blog/extreme-http-performance-tuning-one-point-two-million/",
    ),
    ("Yang Jian 2008", "Yang Jian, a server for 300,000 connections (2008)"),
];

/// Where a source can be read: titles and addresses.
fn places(source: &str) -> Vec<String> {
    let of_author = PUBLICATIONS.iter().filter(|(name, _)| source.contains(name));
    let mut places: Vec<String> = of_author.map(|(_, place)| (*place).to_owned()).collect();
    for part in source.split([';', ',']) {
        let name = part.trim();
        let part = KERNEL_PARTS.iter().find(|(known, _)| name.starts_with(known));
        places.extend(part.map(|(_, path)| {
            let own = name.split([':', ' ']).next().unwrap_or_default();
            format!("{KERNEL_DOCS}{}.html", if path.is_empty() { own } else { path })
        }));
    }
    places
}

/// Flags to repeat, each after a space.
#[derive(Default)]
pub(super) struct Flags {
    /// Those about the server.
    pub(super) served: String,
    /// Those about the machine and its journal.
    pub(super) place: String,
}

/// The state of a tuning, in words.
pub(super) struct TuningText {
    pub(super) value: String,
    pub(super) advice: String,
    pub(super) effect: String,
    pub(super) is_measurable: bool,
}

/// The value, or the reason why there is none.
pub(super) fn or_why(value: Result<String, Unknown>) -> String {
    value.unwrap_or_else(|why| format!("unknown: {why}"))
}

pub(super) fn advice(finding: &Finding) -> Option<&str> {
    finding.advice.as_ref().ok()?.text()
}

/// The reason why something about it is unknown.
pub(super) fn why_unknown(finding: &Finding) -> Option<String> {
    let why = finding.value.as_ref().err().or(finding.advice.as_ref().err());
    why.map(ToString::to_string)
}

pub(super) fn is_change(finding: &Finding) -> bool {
    matches!(finding.advice, Ok(Advice::Change { .. }))
}

/// What a climb needs to measure its effect.
fn measured(needs: Needs, is_measurable: bool) -> &'static str {
    match (needs, is_measurable) {
        (Needs::AnyPath, _) => "on any path, also over loopback",
        (Needs::Card, true) => "over a network card, as here",
        (Needs::Card, false) => "only over a network card: not on this path, or --port is missing",
        (Needs::Reboot, _) => "only across a reboot",
    }
}

fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Process => "the server's process and its sockets",
        Scope::Namespace => "one network namespace",
        Scope::Device => "one network device",
        Scope::Host => "the whole host",
        Scope::Reboot => "the whole host, from its next boot on",
    }
}

/// The columns of the screen, as wide as the terminal allows.
struct Columns {
    name: usize,
    is_now: usize,
    help: usize,
    has_scope: bool,
    is_cut: bool,
}

/// Between two columns.
const GAP: &str = "  ";

/// Columns of the longest word for a risk, `by hand`.
const RISK_COLUMNS: usize = 7;

/// Width of the longest scope, `namespace`.
const SCOPE_COLUMNS: usize = 9;

/// From this width on there is room for the scope.
const WIDE_COLUMNS: usize = 100;

/// From this width on nothing is shortened: enough for most values and advice.
const WHOLE_COLUMNS: usize = 120;

/// Narrower terminals get lines that they wrap.
const COLUMNS_MIN: usize = 72;

/// Width of the field names on a manual page.
const FIELD_COLUMNS: usize = 12;

impl Columns {
    fn new(findings: &[Finding], width: Option<usize>) -> Columns {
        let name = findings.iter().map(|finding| finding.about.name.len()).max().unwrap_or(0);
        let columns = width.unwrap_or(WHOLE_COLUMNS).max(COLUMNS_MIN);
        let has_scope = columns >= WIDE_COLUMNS;
        let scope = if has_scope { SCOPE_COLUMNS + GAP.len() } else { 0 };
        let rest = columns.saturating_sub(name + RISK_COLUMNS + scope + 3 * GAP.len());
        let is_now = rest * 2 / 5;
        Columns { name, is_now, help: rest - is_now, has_scope, is_cut: width.is_some() }
    }

    /// The texts of free length are the last ones, so that they cannot move the others.
    fn line(&self, name: &str, risk: &str, scope: &str, is_now: &str, help: &str) -> String {
        let fitted =
            |text: &str, columns: usize| if self.is_cut { fitted(text, columns) } else { text.to_owned() };
        let (name_columns, is_now_columns) = (self.name, self.is_now);
        let scope = if self.has_scope { format!("{scope:<SCOPE_COLUMNS$}{GAP}") } else { String::new() };
        let line = format!(
            "{name:<name_columns$}{GAP}{risk:<RISK_COLUMNS$}{GAP}{scope}{:<is_now_columns$}{GAP}{}",
            fitted(is_now, is_now_columns),
            fitted(help, self.help)
        );
        line.trim_end().to_owned() + "\n"
    }
}

/// Shortens a text: of `key = value` it keeps the end, of everything else the start.
fn fitted(text: &str, columns: usize) -> String {
    let (count, kept) = (text.chars().count(), columns.saturating_sub(1));
    match (count > columns, text.contains(" = ")) {
        (false, _) => text.to_owned(),
        (true, true) => format!("…{}", text.chars().skip(count - kept).collect::<String>()),
        (true, false) => format!("{}…", text.chars().take(kept).collect::<String>()),
    }
}

/// A heading with a text after it that is wrapped at `width`, all its lines with the same indentation.
fn hanging(heading: &str, indent: usize, text: &str, width: usize) -> String {
    let mut line = format!("{heading:<indent$}");
    let (mut lines, mut is_empty) = (String::new(), true);
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > width {
            lines.push_str(&line);
            lines.push('\n');
            line = " ".repeat(indent);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatout_tune::{Host, Served, ServerSelector, survey};

    /// On the current machine: no line is wider than the terminal, and nothing is shortened without one.
    #[test]
    fn the_screen_fits_the_terminal() {
        let host = Host::live();
        let Ok(served) = Served::find(&host, &ServerSelector::default()) else { return };
        let findings = survey(&host, &served);
        for width in [80, 100, 120, 200] {
            for all in [false, true] {
                let text = screen(&findings, all, Some(width), &Flags::default());
                let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap_or_default();
                assert!(widest.chars().count() <= width, "{width}: {widest}");
            }
        }
        let flags = Flags { served: " --port 80".to_owned(), place: " --state x".to_owned() };
        let text = screen(&findings, true, None, &flags);
        assert!(!text.contains('…'), "{text}");
        assert!(
            text.contains("apply NAME --port 80 --state x ") && text.contains("undo --state x "),
            "{text}"
        );
    }

    #[test]
    fn settings_of_high_risk_come_last() {
        let finding = |name: &str| Finding {
            about: flatout_tune::find(name).unwrap().about(),
            value: Ok("now".to_owned()),
            advice: Ok(Advice::ByHand("something".to_owned())),
            proof: flatout_tune::Proof::Setting,
            moved: None,
            is_measurable: true,
        };
        let findings = ["mitigations", "rps", "qdisc", "sack"].map(finding);
        let text = screen(&findings, false, None, &Flags::default());
        let at = |name: &str| text.find(&format!("\n{name} ")).unwrap_or_else(|| panic!("{name}: {text}"));
        assert!(at("mitigations") > at("sack"), "{text}");
    }

    #[test]
    fn names_with_the_same_reason_share_a_line() {
        let why = |reason: &str| reason.to_owned();
        let unknown = vec![("rps", why("no card")), ("workers", why("no server")), ("gro", why("no card"))];
        let expected = vec![(why("no card"), vec!["rps", "gro"]), (why("no server"), vec!["workers"])];
        assert_eq!(by_reason(unknown), expected);
    }

    #[test]
    fn changes_without_evidence_are_counted_separately() {
        let text = commands(2, 9, &Flags::default());
        assert!(text.contains("make the 2 low-risk changes above\n"), "{text}");
        assert!(text.contains("--possible  and 9 possible ones (see --all)"), "{text}");
        let text = commands(0, 0, &Flags::default());
        assert!(text.contains("there are none here") && !text.contains("--possible"), "{text}");
    }

    #[test]
    fn sources_have_addresses() {
        assert_eq!(
            places("tcp(7); ip-sysctl: tcp_mem"),
            ["https://docs.kernel.org/networking/ip-sysctl.html"]
        );
        let found =
            places("Richards 2021, step 9; admin-guide/sysctl/net: 50; scheduler/sched-bwc for cgroup v1");
        assert!(found[0].starts_with("Marc Richards, Extreme HTTP"), "{found:?}");
        assert_eq!(found[1], "https://docs.kernel.org/admin-guide/sysctl/net.html");
        assert_eq!(found[2], "https://docs.kernel.org/scheduler/sched-bwc.html");
        assert!(places("ethtool(8)").is_empty());
    }

    #[test]
    fn values_of_settings_are_not_truncated() {
        assert_eq!(fitted("net.core.somaxconn = 32768", 17), "…omaxconn = 32768");
        assert_eq!(fitted("packets of each queue", 10), "packets o…");
        assert_eq!(fitted("whole", 5), "whole");
    }

    #[test]
    fn long_texts_hang_behind_their_heading() {
        assert_eq!(hanging("risk", 6, "a bc def", 12), "risk  a bc\n      def\n");
        assert_eq!(hanging("", 0, "", 12), "\n");
        assert_eq!(hanging("", 2, "longer-than-the-width", 6), "  longer-than-the-width\n");
    }
}
