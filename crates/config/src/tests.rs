//! Whole files: valid ones as they are passed to the plan, and each mistake as it is shown.

use std::time::{Duration, Instant};

use crate::{PLAN, Plan, Source, Takes, Word, Words, read};

const BYTES_MAX: usize = PLAN.bytes_max;
const OPENINGS_MAX: usize = PLAN.openings_max;

/// Records the calls.
#[derive(Default)]
struct RecordingPlan(Vec<String>);

impl Plan for RecordingPlan {
    fn setting(&mut self, word: &str, value: &str) -> Result<(), String> {
        self.0.push(format!("{word}={value}"));
        if value == "bad" { Err("got `bad`, need good".to_owned()) } else { Ok(()) }
    }

    fn tuning(&mut self, name: &str) {
        self.0.push(format!("rung {name}"));
    }

    fn variant(&mut self, name: &str) {
        self.0.push(format!("variant {name}"));
    }

    fn of_variant(&mut self, word: &str, value: &str) -> Result<(), String> {
        self.setting(&format!(".{word}"), value)
    }

    fn skip(&mut self, name: &str, reason: &str) {
        self.0.push(format!("skip {name}: {reason}"));
    }
}

const fn word(name: &str, takes: Takes) -> Word<'_> {
    Word { name, takes, is_list: false }
}

const WORDS: Words<'_> = Words {
    settings: &[
        word("server-cmd", Takes::Text),
        word("url", Takes::Text),
        word("pid", Takes::Number),
        word("connections", Takes::Number),
        word("lab", Takes::Nothing),
        Word { name: "header", takes: Takes::Text, is_list: true },
    ],
    variant: &[
        word("server-cmd", Takes::Text),
        word("set", Takes::Text),
        word("unset", Takes::Text),
        word("restart", Takes::Nothing),
    ],
    by_hand: &["keep"],
    tunings: &["gro", "somaxconn"],
};

fn record(bytes: &[u8]) -> Result<Vec<String>, String> {
    let mut told = RecordingPlan::default();
    let source = Source::new("a.kdl", bytes.to_vec(), &PLAN).map_err(|mistake| mistake.to_string())?;
    read(source, &WORDS, &mut told).map_err(|mistake| mistake.to_string())?;
    Ok(told.0)
}

#[test]
fn steps_have_the_order_of_the_file() {
    let text = "// one\nlab\nheader a\nheader b; rung gro\nvariant \"my own\" {\n  set x\n  unset \"y z\"\n  restart\n}\n\
                /- rung nothing\nskip \"xps\" reason=\"one queue\"";
    let expected =
        ["lab=", "header=a", "header=b", "rung gro", "variant my own", ".set=x", ".unset=y z", ".restart="];
    assert_eq!(record(text.as_bytes()).unwrap(), [&expected[..], &["skip xps: one queue"]].concat());
    assert_eq!(record("\u{feff}server-cmd a\r\nurl b\r\n".as_bytes()).unwrap(), ["server-cmd=a", "url=b"]);
}

#[test]
fn each_mistake_is_shown_where_it_is() {
    for (text, expected) in [
        ("lab\nlabb", "a.kdl:2:1: unknown setting `labb`; did you mean `lab`?\n  2 | labb\n    | ^^^^"),
        ("zzz", "a.kdl:1:1: unknown setting `zzz`; see flatout climb --help\n  1 | zzz\n    | ^^^"),
        ("keep", "a.kdl:1:1: `keep` is not allowed in a plan; use the flag --keep\n  1 | keep\n    | ^^^^"),
        (
            "set x",
            "a.kdl:1:1: `set` belongs inside a variant: variant \"NAME\" { … }\n  1 | set x\n    | ^^^",
        ),
        ("lab 1", "a.kdl:1:5: `lab` takes no value; leave this out\n  1 | lab 1\n    |     ^"),
        ("url", "a.kdl:1:1: `url` needs text\n  1 | url\n    | ^^^"),
        ("url 80", "a.kdl:1:5: `url` needs text in quotes, not a whole number\n  1 | url 80\n    |     ^^"),
        (
            "url a b",
            "a.kdl:1:7: `url` takes one value; text with spaces needs quotes\n  1 | url a b\n    |       ^",
        ),
        ("url bad", "a.kdl:1:5: url: got `bad`, need good\n  1 | url bad\n    |     ^^^"),
        (
            "pid 1.5",
            "a.kdl:1:5: `pid` needs a whole number, not a decimal number\n  1 | pid 1.5\n    |     ^^^",
        ),
        ("lab\nurl a\nlab", "a.kdl:3:1: `lab` is given twice; first on line 1\n  3 | lab\n    | ^^^"),
        (
            "lab { url a; }",
            "a.kdl:1:1: `lab` takes no braces; only a variant does\n  1 | lab { url a; }\n    | ^^^",
        ),
        (
            "lab; server-cmd \"x\"",
            "a.kdl:1:6: `server-cmd` needs `url`: the URL to request\n  1 | lab; server-cmd \"x\"\n    |      ^^^^^^^^^^",
        ),
        (
            "server-cmd x; pid 1; url a",
            "a.kdl:1:15: `server-cmd` starts a server, `pid` names one that runs; give one\n  1 | server-cmd x; pid 1; url a\n    |               ^^^",
        ),
        (
            "rung grro",
            "a.kdl:1:6: unknown tuning `grro`; did you mean `gro`?\n  1 | rung grro\n    |      ^^^^",
        ),
        (
            "rung x",
            "a.kdl:1:6: unknown tuning `x`; `flatout tune --all` lists them\n  1 | rung x\n    |      ^",
        ),
        ("rung", "a.kdl:1:1: `rung` needs a name\n  1 | rung\n    | ^^^^"),
        (
            "rung gro somaxconn",
            "a.kdl:1:10: give each rung its own line\n  1 | rung gro somaxconn\n    |          ^^^^^^^^^",
        ),
        (
            "rung gro\n/* é */ skip gro reason=x",
            "a.kdl:2:9: there are two rungs named `gro`; the first is on line 1\n  2 | /* é */ skip gro reason=x\n    |         ^^^^",
        ),
        (
            "skip a raeson=b",
            "a.kdl:1:8: unknown property `raeson=`; did you mean `reason=`?\n  1 | skip a raeson=b\n    |        ^^^^^^^^",
        ),
        (
            "skip a",
            "a.kdl:1:1: `skip` needs a reason, such as skip \"xps\" reason=\"it has one queue\"\n  1 | skip a\n    | ^^^^",
        ),
        (
            "variant a {\n\tset x\n}",
            "a.kdl:2:2: `set` needs an `unset`: otherwise it could not be undone\n  2 | \tset x\n    | \t^^^",
        ),
        (
            "variant a { unset x; }",
            "a.kdl:1:13: `unset` without `set` has nothing to undo\n  1 | variant a { unset x; }\n    |             ^^^^^",
        ),
        (
            "variant a { restart; }",
            "a.kdl:1:1: it changes nothing; add server-cmd, server-args, or set and unset\n  1 | variant a { restart; }\n    | ^^^^^^^",
        ),
        (
            "variant a { server-cdm x; }",
            "a.kdl:1:13: unknown setting `server-cdm` of a variant; did you mean `server-cmd`?\n  1 | variant a { server-cdm x; }\n    |             ^^^^^^^^^^",
        ),
        (
            "variant a { set x; set y; unset z; }",
            "a.kdl:1:20: `set` is given twice; first on line 1\n  1 | variant a { set x; set y; unset z; }\n    |                    ^^^",
        ),
    ] {
        assert_eq!(record(text.as_bytes()).unwrap_err(), expected, "{text}");
    }
}

#[test]
fn invalid_plans_are_reported() {
    assert_eq!(record(b"").unwrap_err(), "a.kdl:1:1: it is empty; a plan needs at least one rung");
    assert_eq!(
        record(b"lab\nurl \"\xff\xfe\"").unwrap_err(),
        "a.kdl:2:6: it is not UTF-8\n  2 | url \"\u{fffd}\u{fffd}\"\n    |      ^"
    );
    let huge = vec![b'\n'; BYTES_MAX + 1];
    assert_eq!(record(&huge).unwrap_err(), "a.kdl:1:1: it is larger than 64 KiB, the limit of a plan");
    for deep in ["a{", "/*", "("] {
        let message = record(deep.repeat(BYTES_MAX / 2).as_bytes()).unwrap_err();
        assert!(message.contains(&format!("more than {OPENINGS_MAX} braces")), "{message}");
    }
}

/// Invalid KDL has a position too, whatever it is; and no control characters reach the terminal.
#[test]
fn kdl_errors_have_a_position() {
    for text in ["url \"a", "lab {", "lab }", "url #maybe", "\"", "=", "lab \u{1b}[2J", "url a=\nlab"] {
        let message = record(text.as_bytes()).unwrap_err();
        assert!(message.starts_with("a.kdl:") && !message.contains('\u{1b}'), "{message}");
    }
}

/// The largest files of a kind that parsers are slow on.
#[test]
fn the_largest_file_is_read_in_time() {
    for open in ["a{", "/*", "(", "a \"}\" {"] {
        let begun = Instant::now();
        let _ = record(open.repeat(OPENINGS_MAX).as_bytes());
        assert!(begun.elapsed() < Duration::from_secs(60), "{open:?} took {:?}", begun.elapsed());
    }
    for part in ["lab;", "url \"", "a ", "/-", "#\"", "\\\n", "header a\n", "{}", "é", "a{}", "1", "a=1 "] {
        let begun = Instant::now();
        let _ = record(part.repeat(BYTES_MAX / part.len()).as_bytes());
        assert!(begun.elapsed() < Duration::from_secs(60), "{part:?} took {:?}", begun.elapsed());
    }
}

#[test]
fn later_mistakes_have_a_position() {
    let text = "lab\nheader a\nheader b\nrung gro\nvariant \"my own\" { set x; unset y; }\nskip xps reason=r";
    let source = Source::new("a.kdl", text.as_bytes().to_vec(), &PLAN).unwrap();
    let mut places = read(source, &WORDS, &mut RecordingPlan::default()).unwrap();
    let shown = |mistake: Option<crate::Mistake>| mistake.map(|mistake| mistake.to_string());
    for (mistake, expected) in [
        (places.setting("lab", "no"), Some("a.kdl:1:1: no\n  1 | lab\n    | ^^^")),
        (places.setting("header", "no"), Some("a.kdl:2:8: no\n  2 | header a\n    |        ^")),
        (places.setting("url", "no"), None),
        (places.rung("gro", "no"), Some("a.kdl:4:6: no\n  4 | rung gro\n    |      ^^^")),
        (
            places.rung("my own", "no"),
            Some("a.kdl:5:9: no\n  5 | variant \"my own\" { set x; unset y; }\n    |         ^^^^^^^^"),
        ),
        (places.rung("xps", "no"), Some("a.kdl:6:6: no\n  6 | skip xps reason=r\n    |      ^^^")),
        (places.rung("lab", "no"), None),
        (Some(places.whole("no")), Some("a.kdl:1:1: no\n  1 | lab\n    | ^")),
    ] {
        assert_eq!(shown(mistake).as_deref(), expected);
    }
    places.forget_setting("lab");
    places.forget_rungs();
    assert!(places.setting("lab", "no").is_none() && places.rung("gro", "no").is_none());
}
