//! Checks names over all crates: a type name is used once in a crate and is a noun of the field, modules are not named by
//! participles, and tests are plain statements. Sources are read as text, so a type must be defined at the start of a line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Words that have been type names and do not say what the type is.
const VAGUE: &[&str] =
    &["Said", "Asked", "Kept", "Held", "Looked", "Told", "Came", "Went", "Took", "What", "Left", "Given"];

/// Modules that end with `-ing` and are named by a noun or a fixed term.
const NOUNS: &[(&str, &str)] = &[
    ("blocking", "tokio's term for calls that block a thread"),
    ("coalescing", "ethtool's term, and the name of a tuning"),
    ("framing", "RFC 9112's term"),
    ("incoming", "an adjective: the body `Incoming`"),
    ("listing", "the page that lists a folder"),
    ("outgoing", "an adjective: the body `Outgoing`"),
    ("pinning", "the kernel's term, and the name of a tuning"),
    ("routing", "the field's term"),
    ("setting", "an entry of a file or a flag"),
    ("string", "not a participle"),
    ("timing", "the field's term"),
    ("tracing", "OpenTelemetry's term, and the crate's name"),
    ("tuning", "an entry of `flatout tune`"),
];

/// Words that make the name of a test a riddle (`what_cannot_be_is_told`): a plain statement has a noun in their place.
const RIDDLES: &[&str] = &[
    "alike", "came", "gotten", "nobody", "nobodys", "said", "somebody", "taken", "tell", "tells", "told",
    "went", "what", "whatever", "who",
];

/// What still fails in crates that are being rebuilt, as `rule crate name`. To be emptied: an entry that no longer
/// fails is an error.
const TEMPORARY: &[&str] = &[
    "participle engine src/h1/answering.rs",
    "participle engine src/h1/ending.rs",
    "participle engine src/h1/reading.rs",
    "participle engine src/h1/sending.rs",
    "participle engine src/h2/answering.rs",
    "participle engine src/h2/ending.rs",
    "participle engine src/h2/reading.rs",
    "participle engine src/h2/sending.rs",
    "participle engine src/listening.rs",
    "participle site src/tests/waiting.rs",
    "test cache a_slice_is_what_was_asked_for_and_has_a_validator",
    "test cache an_entry_has_what_it_was_made_of",
    "test cache both_lines_are_said",
    "test cache it_fits_what_it_names",
    "test cache manifest_and_slices_say_what_they_are_of",
    "test engine a_body_that_breaks_off_is_sent_as_far_as_it_came",
    "test engine a_body_that_is_cut_is_not_taken_for_whole",
    "test engine a_body_that_nobody_reads_does_not_reset_the_last_response_away",
    "test engine a_body_that_nobody_reads_is_skipped_or_ends_the_connection",
    "test engine a_body_that_nobody_wants_is_not_read_while_its_response_is_made",
    "test engine a_client_is_told_to_send_its_body_when_somebody_reads_it",
    "test engine a_drain_waits_for_what_is_under_way",
    "test engine a_request_is_taken_up_again",
    "test engine a_reset_ends_a_request_whose_body_nobody_reads",
    "test engine a_reset_ends_what_makes_the_response",
    "test engine a_stopped_server_tells_readers_of_bodies",
    "test engine all_bodies_share_one_limit_and_give_back_what_they_took",
    "test engine an_address_that_was_left_can_be_taken_again_at_once",
    "test engine connection_is_said_where_it_differs_from_the_default",
    "test engine half_closed_clients_get_what_they_asked_for",
    "test engine it_is_offered_only_if_enabled",
    "test engine nobody_else_is_believed",
    "test engine one_who_pipelines_without_end_leaves_others_their_turn",
    "test engine small_pieces_count_with_what_they_cost",
    "test engine what_comes_later_comes_at_once",
    "test engine what_is_no_tls_or_too_old_gets_an_alert",
    "test engine what_no_client_took_is_not_reported_as_sent",
    "test engine what_waits_to_be_sent_is_bounded_however_small_its_pieces",
    "test engine what_was_received_stays_readable_and_the_error_says_why_it_ends",
    "test engine what_was_written_before_a_later_response_is_not_sent_to_the_next_client",
    "test engine who_sends_in_many_pieces_gets_no_more_turns",
    "test proxy heads_say_what_they_said",
    "test proxy it_takes_answers_in_a_row",
    "test proxy what_no_plan_has_is_forgotten_when_there_is_no_room",
    "test site a_burst_is_spread_over_time_and_those_who_wait_have_a_limit",
    "test site a_strict_route_refuses_what_has_two_readings",
    "test site it_is_a_leaky_bucket",
    "test site nobody_else_is_believed",
    "test site nobody_is_no_list",
    "test site nobody_waits_for_longer_than_the_limit",
    "test site one_who_gave_up_holds_no_place",
    "test site one_who_goes_away_leaves_the_queue",
    "test site places_go_to_those_who_wait_in_their_order",
    "test site rewrites_change_what_is_sent_and_may_choose_another_route",
    "test site rewrites_do_not_lead_above_what_they_were_given",
    "test site the_first_page_that_fits_is_taken",
    "test site variables_are_what_the_request_has",
    "test site what_applications_need_goes_through_as_it_was_sent",
    "test site what_there_is_not_is_refused",
];

/// A source file of a crate, and the crate's name.
struct Source {
    package: String,
    path: PathBuf,
    text: String,
}

impl Source {
    /// The name of its module: that of the folder for `mod.rs`.
    fn module(&self) -> &str {
        let named = if self.path.ends_with("mod.rs") { self.path.parent().unwrap() } else { &self.path };
        named.file_stem().unwrap().to_str().unwrap()
    }

    /// Its text without modules of tests. Those are at the end of a file, or files of their own.
    fn product(&self) -> &str {
        let is_test = |part: &str| part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs");
        if self.path.iter().any(|part| is_test(part.to_str().unwrap())) {
            return "";
        }
        let end = self.text.match_indices("#[cfg(test)]\nmod ").find(|(at, start)| {
            let line = self.text[at + start.len()..].lines().next().unwrap_or_default();
            line.ends_with('{')
        });
        end.map_or(&self.text, |(at, _)| &self.text[..at])
    }
}

/// All sources below `crates/*/NAME` for these folders, and below `tests`.
fn sources(folders: &[&str]) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join("crates")).unwrap() {
        let package = entry.unwrap().path();
        let name = package.file_name().unwrap().to_str().unwrap();
        folders.iter().for_each(|folder| collect(name, &package.join(folder), Path::new(folder), &mut found));
    }
    if folders.contains(&"tests") {
        collect("tests", &root.join("tests/tests"), Path::new("tests"), &mut found);
    }
    assert!(found.len() > 200, "{} sources", found.len());
    found
}

/// Adds the sources in a folder, with their path relative to the crate.
fn collect(package: &str, folder: &Path, relative: &Path, found: &mut Vec<Source>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.map(|entry| entry.unwrap().path()) {
        let path = relative.join(entry.file_name().unwrap());
        if entry.is_dir() {
            collect(package, &entry, &path, found);
        } else if entry.extension().is_some_and(|kind| kind == "rs") {
            let text = fs::read_to_string(&entry).unwrap();
            found.push(Source { package: package.to_owned(), path, text });
        }
    }
}

/// The name of the type that a line defines. Associated types are indented and not public: they are none.
fn type_defined(line: &str) -> Option<&str> {
    let words = line.trim_start();
    let public = ["pub ", "pub(crate) ", "pub(super) "].iter().find_map(|start| words.strip_prefix(start));
    let restricted = || words.strip_prefix("pub(in ")?.split_once(") ").map(|(_, rest)| rest);
    let rest = public.or_else(restricted).unwrap_or(words);
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (kind, rest) = rest.split_once(' ')?;
    let is_type = match kind {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => line == words || rest.len() < words.len() - "type ".len(),
        _ => false,
    };
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (is_type && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
}

/// The names of the tests in a source.
fn tests(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if let Some(function) = function.filter(|_| is_test) {
            names.extend(function.split(['(', '<']).next());
            is_test = false;
        }
    }
    names
}

/// Fails with what is wrong beside the temporary list, and with entries of that list that are fine now.
fn report(rule: &str, advice: &str, wrong: &BTreeMap<String, String>) {
    let listed: BTreeSet<&str> =
        TEMPORARY.iter().filter_map(|entry| entry.strip_prefix(rule)).map(str::trim).collect();
    let new: Vec<String> = wrong
        .iter()
        .filter(|(key, _)| !listed.contains(key.as_str()))
        .map(|(key, place)| format!("  {key}: {place}"))
        .collect();
    assert!(new.is_empty(), "{advice}:\n{}", new.join("\n"));
    let fine: Vec<&&str> = listed.iter().filter(|entry| !wrong.contains_key(**entry)).collect();
    assert!(fine.is_empty(), "these are fine now; remove them from TEMPORARY ({rule}): {fine:?}");
}

#[test]
fn type_names_are_unique_in_a_crate() {
    let sources = sources(&["src"]);
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in &sources {
        for name in source.product().lines().filter_map(type_defined) {
            let key = format!("{} {name}", source.package);
            places.entry(key).or_default().push(source.path.display().to_string());
        }
    }
    assert!(places.len() > 1000, "{} types", places.len());
    let twice = places.into_iter().filter(|(_, files)| files.len() > 1);
    let wrong = twice.map(|(key, files)| (key, files.join(", "))).collect();
    report("twice", "a crate has two types of the same name; name each by what sets it apart", &wrong);
}

#[test]
fn type_names_are_nouns_of_the_field() {
    let mut wrong = BTreeMap::new();
    for source in &sources(&["src", "tests"]) {
        for name in source.text.lines().filter_map(type_defined).filter(|name| VAGUE.contains(name)) {
            wrong.insert(format!("{} {name}", source.package), source.path.display().to_string());
        }
    }
    report(
        "vague",
        "a type has a name that does not say what it is; use the field's noun (query, entry, event)",
        &wrong,
    );
}

#[test]
fn modules_are_named_by_nouns() {
    let mut wrong = BTreeMap::new();
    let is_noun = |module: &str| NOUNS.iter().any(|(noun, _)| *noun == module);
    for source in &sources(&["src"]) {
        let module = source.module();
        if module.ends_with("ing") && !is_noun(module) {
            wrong.insert(format!("{} {}", source.package, source.path.display()), module.to_owned());
        }
    }
    report(
        "participle",
        "a module is named by a participle; use a noun, or add a noun to NOUNS with its reason",
        &wrong,
    );
}

#[test]
fn tests_are_named_by_statements() {
    let mut wrong = BTreeMap::new();
    let mut count = 0;
    for source in &sources(&["src", "tests"]) {
        for name in tests(&source.text) {
            count += 1;
            let riddle = name.split('_').find(|word| RIDDLES.contains(word));
            let riddle = riddle.or_else(|| name.starts_with("it_").then_some("it"));
            if let Some(word) = riddle {
                wrong.insert(
                    format!("{} {name}", source.package),
                    format!("{} (`{word}`)", source.path.display()),
                );
            }
        }
    }
    assert!(count > 1500, "{count} tests");
    report("test", "the name of a test is a riddle; write a plain statement with nouns", &wrong);
}

#[test]
fn definitions_are_found() {
    let found = |line: &'static str| type_defined(line);
    assert_eq!(found("pub(in crate::serve) struct Values<'a> {"), Some("Values"));
    assert_eq!(found("    pub(super) enum Scope;"), Some("Scope"));
    assert_eq!(found("type Edges = BTreeMap<u8, u8>;"), Some("Edges"));
    assert_eq!(found("    type Output = u8;"), None);
    assert_eq!(found("    // struct Nothing"), None);
    assert_eq!(tests("#[test]\nfn a() {}\nfn b() {}\n#[tokio::test]\nasync fn c() {}"), ["a", "c"]);
}
