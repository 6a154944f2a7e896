//! A plan file: the flags' settings with the same names, parsed by the same functions, and rungs.

use std::path::Path;

use flatout_climb::{Attempt, Needs, Rung, Variant};
use flatout_config::{Mistake, PLAN, Source, Takes, Word, Words, read as read_plan};
use flatout_tune::TUNINGS;

use super::options::ClimbOptions;
use super::settings::{GROUPS, OF_VARIANTS, of_files};
use crate::setting::Setting;
use crate::value;

/// The options from the file at `path`, with defaults for the rest.
///
/// # Errors
/// The file cannot be read; or its first mistake, with file, line and column.
pub(super) fn read(path: &Path) -> Result<ClimbOptions, String> {
    let name = path.display().to_string();
    let bytes = value::contents(path, PLAN.bytes_max as u64).map_err(|error| format!("--plan: {error}"))?;
    parse(&name, bytes).map_err(|mistake| mistake.to_string())
}

fn parse(name: &str, bytes: Vec<u8>) -> Result<ClimbOptions, Mistake> {
    let source = Source::new(name, bytes, &PLAN)?;
    let settings: Vec<Word<'_>> = of_files().map(|setting| word(setting.name, setting)).collect();
    let of_variant = |(name, flag): &(&'static str, &str)| find(flag).map(|setting| word(name, setting));
    let variant: Vec<Word<'_>> = OF_VARIANTS.iter().filter_map(of_variant).collect();
    let is_of_files = |name: &str| of_files().any(|setting| setting.name == name);
    let is_of_variants = |name: &str| OF_VARIANTS.iter().any(|(_, flag)| *flag == name);
    let flags = all().map(|setting| setting.name);
    let by_hand: Vec<&str> =
        flags.filter(|name| !is_of_files(name) && !is_of_variants(name) && *name != "variant").collect();
    let tunings: Vec<&str> = TUNINGS.iter().map(|tuning| tuning.about().name).collect();
    let words = Words { settings: &settings, variant: &variant, by_hand: &by_hand, tunings: &tunings };
    let mut filled = Filled(ClimbOptions::default());
    let places = read_plan(source, &words, &mut filled)?;
    Ok(ClimbOptions { places: Some(places), ..filled.0 })
}

/// ClimbOptions that are being filled from a file.
struct Filled(ClimbOptions);

impl Filled {
    fn rung(&mut self, name: &str, change: Attempt) {
        self.0.rungs.push(Rung { name: name.to_owned(), change, needs: Needs::AnyPath });
    }

    fn set(&mut self, flag: &str, value: &str) -> Result<(), String> {
        let setting = find(flag).ok_or_else(|| format!("there is no flag --{flag}"))?;
        (setting.set)(&mut self.0, value)
    }
}

impl flatout_config::Plan for Filled {
    fn setting(&mut self, word: &str, value: &str) -> Result<(), String> {
        self.set(word, value)
    }

    fn tuning(&mut self, name: &str) {
        self.rung(name, Attempt::Tuning);
    }

    fn variant(&mut self, name: &str) {
        self.rung(name, Attempt::Variant(Variant::default()));
    }

    fn of_variant(&mut self, word: &str, value: &str) -> Result<(), String> {
        let flag = OF_VARIANTS.iter().find(|(name, _)| *name == word).map_or(word, |(_, flag)| *flag);
        self.set(flag, value)
    }

    fn skip(&mut self, name: &str, reason: &str) {
        self.rung(name, Attempt::Skip(reason.to_owned()));
    }
}

fn all() -> impl Iterator<Item = &'static Setting<ClimbOptions>> {
    GROUPS.iter().flat_map(|(_, settings)| settings.iter())
}

fn find(flag: &str) -> Option<&'static Setting<ClimbOptions>> {
    all().find(|setting| setting.name == flag)
}

fn word(name: &'static str, setting: &Setting<ClimbOptions>) -> Word<'static> {
    let takes = match setting.value {
        "" => Takes::Nothing,
        "N" | "PID" => Takes::Number,
        _ => Takes::Text,
    };
    Word { name, takes, is_list: setting.name == "header" }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flatout_climb::{Objective, Plan, ServerPlan};
    use flatout_tune::Host;

    use super::*;
    use crate::climb::{COMMAND, NAMES};
    use crate::setting::{fill, names_given, words};

    fn mistake(text: &str) -> String {
        match parse("a.kdl", text.as_bytes().to_vec()) {
            Ok(_) => panic!("no mistake in {text}"),
            Err(mistake) => mistake.to_string(),
        }
    }

    /// The plan of a file with these flags.
    fn plan(text: &str, flags: &[&str]) -> Result<Plan, String> {
        let Ok(matches) = COMMAND.parse(flags.iter().map(ToString::to_string)) else { panic!("{flags:?}") };
        let read = |mut options: ClimbOptions| match fill(&matches, GROUPS, &mut options) {
            Ok(()) => options,
            Err(failure) => panic!("{failure}"),
        };
        let (flags, names) = (read(ClimbOptions::default()), words(&matches, NAMES.1));
        let file = parse("a.kdl", text.as_bytes().to_vec()).map_err(|mistake| mistake.to_string())?;
        read(file.under(&flags, &names, &names_given(&matches, GROUPS))).plan(names, &Host::live())
    }

    const WHOLE: &str = r#"
server-cmd "nginx -c base.conf"
url "http://127.0.0.1:8080/"
bench "wrk -d2s $FLATOUT_URL"
for p99
connections 9
duration "2s"
interval "2%"
header "A: b"
header "C: d"
rung "congestion"
variant "ram cache" { server-cmd "nginx -c step4.conf" }
variant "reno" {
    set "sysctl -w a=reno"
    unset "sysctl -w a=bbr"
    restart
    needs "device"
}
rung somaxconn
skip "xps" reason="it has one queue"
"#;

    #[test]
    fn files_and_flags_are_equivalent() {
        let file = plan(WHOLE, &[]).unwrap();
        let server = ["--server-cmd", "nginx -c base.conf", "--url", "http://127.0.0.1:8080/"];
        let load = ["--bench", "wrk -d2s $FLATOUT_URL", "--for", "p99", "-c9", "-d2s", "--interval", "2%"];
        let first =
            ["--variant", "ram cache", "--with-cmd", "nginx -c step4.conf", "congestion", "somaxconn"];
        let second = ["--variant", "reno", "--set", "sysctl -w a=reno", "--unset", "sysctl -w a=bbr"];
        let rest = ["--restart", "--needs", "device", "-HA: b", "-HC: d"];
        let flags = [&server[..], &load, &first, &second, &rest].concat();
        let same = plan("warmup \"200ms\"", &flags).unwrap();
        let skip = Attempt::Skip("it has one queue".to_owned());
        assert_eq!(file.rungs.last().unwrap().change, skip);
        let names: Vec<&str> = file.rungs.iter().map(|rung| rung.name.as_str()).collect();
        assert_eq!(names, ["congestion", "ram cache", "reno", "somaxconn", "xps"]);
        for rung in &same.rungs {
            assert!(file.rungs.contains(rung), "{rung:?}");
        }
        let rest = |plan: Plan| format!("{:?}", Plan { rungs: Vec::new(), ..plan });
        assert_eq!(rest(file), rest(same));
    }

    #[test]
    fn flags_override_the_file() {
        let one = plan(WHOLE, &["--port", "9", "--pid", "7", "--for", "cpu", "gro"]).unwrap();
        assert_eq!((one.url.as_str(), one.server), ("http://127.0.0.1:9/", ServerPlan::Running(Some(7))));
        assert_eq!((one.objective, one.width_max), (Objective::Cpu, 0.02));
        assert_eq!(one.rungs.len(), 1);
        let other = plan(WHOLE, &["--budget", "1m"]).unwrap();
        assert_eq!((other.budget, other.rungs.len()), (Duration::from_secs(60), 5));
    }

    #[test]
    fn risky_rungs_are_skipped_until_the_risk_is_accepted() {
        let text = "port 1\nrung \"audit\"\nrung \"gro\"";
        let change = |flags: &[&str]| plan(text, flags).unwrap().rungs[0].change.clone();
        let Attempt::Skip(why) = change(&[]) else { panic!() };
        assert!(why.ends_with("if that is acceptable: --accept-risk"), "{why}");
        assert_eq!(change(&["--accept-risk"]), Attempt::Tuning);
    }

    #[test]
    fn refused_values_have_a_position() {
        for (text, expected) in [
            (
                "for fun",
                "a.kdl:1:5: for: got `fun`, need throughput, p99 or cpu\n  1 | for fun\n    |     ^^^",
            ),
            (
                "rung gro\n  duration \"2 s\"",
                "a.kdl:2:12: duration: got `2 s`, need a time such as 500ms, 10s, 5m or 1h\n  2 |   duration \"2 s\"\n    |            ^^^^^",
            ),
            (
                "connections -1",
                "a.kdl:1:13: connections: got `-1`, need a whole number\n  1 | connections -1\n    |             ^^",
            ),
            (
                "connections \"many\"",
                "a.kdl:1:13: `connections` needs a whole number, not a text\n  1 | connections \"many\"\n    |             ^^^^^^",
            ),
            (
                "run-time \"2s\"",
                "a.kdl:1:1: unknown setting `run-time`; did you mean `duration`?\n  1 | run-time \"2s\"\n    | ^^^^^^^^",
            ),
            (
                "conections 64",
                "a.kdl:1:1: unknown setting `conections`; did you mean `connections`?\n  1 | conections 64\n    | ^^^^^^^^^^",
            ),
            (
                "accept-risk",
                "a.kdl:1:1: `accept-risk` is not allowed in a plan; use the flag --accept-risk\n  1 | accept-risk\n    | ^^^^^^^^^^^",
            ),
            (
                "rung \"congestoin\"",
                "a.kdl:1:6: unknown tuning `congestoin`; did you mean `congestion`?\n  1 | rung \"congestoin\"\n    |      ^^^^^^^^^^^^",
            ),
            (
                "variant \"a\" {\n\tset \"x\"\n}",
                "a.kdl:2:2: `set` needs an `unset`: otherwise it could not be undone\n  2 | \tset \"x\"\n    | \t^^^",
            ),
            (
                "variant \"a\" { needs \"luck\"; set x; unset y }",
                "a.kdl:1:21: needs: got `luck`, need any, device or reboot\n  1 | variant \"a\" { needs \"luck\"; set x; unset y }\n    |                     ^^^^^^",
            ),
        ] {
            assert_eq!(mistake(text), expected);
        }
    }

    /// Mistakes that only the whole plan shows have a position too, and say what to do.
    #[test]
    fn invalid_plans_have_a_position() {
        let rungs: String = (0..101).map(|at| format!("variant v{at} {{ set x; unset y }}\n")).collect();
        for (text, expected) in [
            (
                "port 1\nlab\nrung gro",
                "2:1: the lab has networks of its own, so the climb has to start the server; give",
            ),
            ("port 1\nlab-setup x\nrung gro", "2:11: lab-setup: there is no lab; add --lab"),
            ("port 1\nskip gro reason=r", "1:1: there is no rung to try; name tunings"),
            (
                "pairs 1\nrung gro",
                "1:7: pairs at least: got 1, need 4 to 10000\n  1 | pairs 1\n    |       ^",
            ),
            ("rung gro\npairs-max 2", "2:11: pairs at most: got 2, need 5 to 10000"),
            ("pairs 50\npairs-max 10\nrung gro", "2:11: pairs at most: got 10, need 50 to"),
            ("pairs 20000\nrung gro", "1:7: pairs at least: got 20000, need 4 to"),
            ("shapley 2\nrung gro", "1:9: orders: got 2, need 6 to 1000"),
            ("  connections 0\nrung gro", "1:15: connections: got 0, need 1 to"),
            (
                "connections 4000000000\nrung gro",
                "1:13: connections: got 4000000000, but the descriptor limit",
            ),
            ("threads 2000; connections 3000\nrung gro", "1:9: threads: got 2000, need 1 to 1024"),
            ("threads 0\nrung gro", "1:9: threads: got 0, need 1 to 1024"),
            (
                "duration \"200h\"\nrung gro",
                "1:10: duration: got 720000s, need more than 0 and at most 7 days",
            ),
            ("duration \"0s\"\nrung gro", "1:10: duration: got 0ns, need more than 0"),
            ("rung gro\nwarmup \"200h\"", "2:8: warm-up: got 720000s, need at most 7 days"),
            (
                "header \"Content-Length: 1\"\nrung gro",
                "1:8: header: Content-Length is set by the body; leave",
            ),
            ("header \"A b: c\"\nrung gro", "1:8: header: got `A b: c`, need `Name: value`"),
            (
                "rung gro\nurl \"ftp://a\"",
                "2:5: `ftp://a`: scheme `ftp` is not supported; give an http or https URL",
            ),
            ("url \"http://:80\"\nrung gro", "1:5: `http://:80` has no host; need http://HOST"),
            (
                "port 1\nvariant \"a\" { set x; unset y; restart }",
                "2:9: rung `a`: it needs a restart of the server, and this climb did not start the server; give its \
                 command\n  2 | variant \"a\" { set x; unset y; restart }\n    |         ^^^",
            ),
            (
                "pid 1; url \"http://127.0.0.1:1/\"\nrung gro\nvariant b { server-args c }",
                "3:9: rung `b`: it needs a restart of the server",
            ),
            (rungs.as_str(), "101:9: rungs: got 101, need 1 to 100"),
        ] {
            let Err(message) = plan(text, &[]) else { panic!("no mistake in {text}") };
            assert!(message.starts_with(&format!("a.kdl:{expected}")), "{text}: {message}");
            assert!(
                message.contains("\n    |") || message.contains("\n      |"),
                "the line is shown: {message}"
            );
        }
        // Values from the command line are not in the file.
        for flags in [&["--pairs", "1"][..], &["-c0"], &["--url", "ftp://a"], &["--variant", "v0"]] {
            let Err(message) = plan("pairs 9; connections 9; port 1\nvariant v0 { set x; unset y }", flags)
            else {
                panic!("{flags:?}")
            };
            assert!(!message.contains("a.kdl"), "{flags:?}: {message}");
        }
    }

    /// Every word of a file has a flag with the same meaning.
    #[test]
    fn settings_of_variants_have_flags() {
        for (_, flag) in OF_VARIANTS {
            assert!(find(flag).is_some(), "{flag}");
        }
    }

    #[test]
    fn shipped_plans_are_valid() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../climbs"));
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "kdl") {
                continue;
            }
            let options = read(&path).unwrap();
            // A plan without rungs gets them where it is run.
            let plan = Some(&options).filter(|options| !options.rungs.is_empty());
            let rungs = plan.map_or(Vec::new(), |plan| plan.plan(Vec::new(), &Host::live()).unwrap().rungs);
            // Tunings are looked up when they are parsed; the names in printed commands are looked up here.
            let variants = rungs.iter().filter_map(|rung| match &rung.change {
                Attempt::Variant(variant) => variant.server_command.as_deref(),
                _ => None,
            });
            for word in variants.chain(options.server_command.as_deref()).flat_map(str::split_whitespace) {
                assert!(!word.starts_with("climbs/") || folder.join("..").join(word).exists(), "{word}");
            }
            count += 1;
        }
        assert_eq!(count, 7);
    }
}
