//! Files with blocks: good ones as they are read, each mistake as it is shown, and what formatting makes of them.

use std::time::{Duration, Instant};

use crate::{Grammar, Node, SITE_FILE, Scope, SiteWord, Source, formatted, read_tree};

fn grammar() -> Grammar<'static> {
    let word = |name, values| SiteWord { name, values, keys: Vec::new(), braces: None, is_list: false };
    let list = |name, values| SiteWord { is_list: true, ..word(name, values) };
    let block = |name, values, scope| SiteWord { braces: Some(scope), ..list(name, values) };
    let log = SiteWord { keys: vec![("buffer", "BYTES"), ("gzip", "on|off")], ..word("access-log", "FILE") };
    Grammar {
        scopes: vec![
            Scope {
                name: "at the top of the file",
                words: vec![
                    list("listen", "ADDR"),
                    word("workers", "N"),
                    word("spa", "[on|off]"),
                    word("drain-time", "TIME"),
                    word("share-port", ""),
                    log,
                    block("site", "HOST…", 1),
                ],
            },
            Scope {
                name: "in a site",
                words: vec![word("spa", "[on|off]"), list("allow", "PEER…"), block("route", "PATH", 2)],
            },
            Scope {
                name: "in a route",
                words: vec![word("respond", "STATUS [TEXT]"), list("header", "set|add NAME TEXT")],
            },
        ],
        elsewhere: &[("location", "route")],
        manual: "see the manual",
    }
}

fn source(text: &str) -> Source {
    Source::new("a.kdl", text.as_bytes().to_vec(), &SITE_FILE).unwrap()
}

fn read(text: &str) -> Result<Vec<Node>, String> {
    let source =
        Source::new("a.kdl", text.as_bytes().to_vec(), &SITE_FILE).map_err(|mistake| mistake.to_string())?;
    let (tree, mistakes) = read_tree(source, &grammar());
    match mistakes.first() {
        None => Ok(tree.nodes),
        Some(mistake) => Err(mistake.to_string()),
    }
}

/// All mistakes of a text, each with its place.
fn mistakes(text: &str) -> Vec<String> {
    let (_, mistakes) = read_tree(source(text), &grammar());
    mistakes.iter().map(|it| format!("{}:{}: {}", it.line, it.column, it.message)).collect()
}

/// Nodes as one would write them.
fn written(nodes: &[Node]) -> String {
    let one = |node: &Node| {
        let values: String = node.values.iter().map(|value| format!(" {}", value.text)).collect();
        let keys: String = node.keys.iter().map(|(name, value)| format!(" {name}={}", value.text)).collect();
        let inner =
            node.inner.as_ref().map_or_else(String::new, |inner| format!(" {{ {} }}", written(inner)));
        format!("{}{values}{keys}{inner}", node.name)
    };
    nodes.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[test]
fn files_are_read() {
    for (text, expected) in [
        ("listen 80\nlisten \":81\" // two\nworkers 4", "listen 80; listen :81; workers 4"),
        ("spa; share-port", "spa; share-port"),
        (
            "site a { \n spa \n} \nsite b {\n  route \"/\" { respond 200; } \n  allow all\n}\t\n",
            "site a { spa }; site b { route / { respond 200 }; allow all }",
        ),
        ("spa #false", "spa off"),
        ("access-log \"/a b\" buffer=\"1KiB\" gzip=#true", "access-log /a b buffer=1KiB gzip=on"),
        (
            "site a b {\n  allow all\n  allow unix \"10.0.0.0/8\"\n  route \"/\" { respond 200 ok; }\n  route \"/b\" { respond 204; header set A b }\n}",
            "site a b { allow all; allow unix 10.0.0.0/8; route / { respond 200 ok }; route /b { respond 204; header set A b } }",
        ),
    ] {
        assert_eq!(read(text).map(|nodes| written(&nodes)).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn mistakes_have_a_place_and_a_guess() {
    for (text, expected) in [
        (
            "lisen 80",
            "1:1: unknown setting `lisen` at the top of the file; did you mean `listen`?\n  1 | lisen 80\n    | ^^^^^",
        ),
        ("zzz", "1:1: unknown setting `zzz` at the top of the file; see the manual"),
        (
            "site a {\n  location \"/\"\n}",
            "2:3: unknown setting `location` in a site; here it is `route`\n  2 |   location \"/\"\n    |   ^^^^^^^^",
        ),
        ("site a { workers 4; }", "1:10: `workers` is not allowed in a site, only at the top of the file"),
        (
            "site a { route \"/\" { spa } }",
            "1:22: `spa` is not allowed in a route, only at the top of the file or in a site",
        ),
        ("workers", "1:1: `workers` needs a whole number"),
        ("workers \"4\"", "1:9: `workers` needs a whole number, not a text"),
        ("workers 1.5", "1:9: `workers` needs a whole number, not a decimal number"),
        ("workers 1 2", "1:11: `workers` takes one value; text with spaces needs quotes"),
        ("workers 1\n\nworkers 2", "3:1: `workers` is given twice; first on line 1"),
        ("share-port on", "1:12: `share-port` takes no value; leave this out"),
        ("spa onn", "1:5: spa: got `onn`, need on or off; did you mean `on`?"),
        ("spa 1", "1:5: `spa` needs on or off, not a whole number"),
        ("workers 4 { spa; }", "1:1: `workers` takes no braces"),
        ("site", "1:1: `site` needs a text in quotes"),
        ("site a { route \"/\" { respond; } }", "1:22: `respond` needs a whole number"),
        (
            "site a { route \"/\" { respond 200 ok no; } }",
            "1:37: `respond` takes 2 values; text with spaces needs quotes",
        ),
        (
            "site a { route \"/\" { header sett A b; } }",
            "1:29: header: got `sett`, need set or add; did you mean `set`?",
        ),
        ("access-log a bufer=\"1KiB\"", "1:14: `access-log` has no `bufer=`; did you mean `buffer=`?"),
        ("access-log a size=1", "1:14: `access-log` has no `size=`; it has buffer=, gzip="),
        ("access-log a buffer=1 buffer=2", "1:23: `buffer=` is given twice"),
        (
            "access-log a buffer=#true",
            "1:14: `buffer=` needs a number of bytes such as \"64KiB\", not #true or #false",
        ),
        ("workers n=1", "1:9: `workers` has no `n=`; leave it out"),
        ("(u8)workers 1", "1:5: leave out `(u8)`: type annotations are not supported"),
        ("workers (u8)1", "1:9: leave out `(u8)`: type annotations are not supported"),
        ("workers #null", "1:9: `workers` needs a whole number, not #null"),
        // What people bring along from other configurations.
        (
            "# a comment\nworkers 4",
            "1:1: comments begin with `//`, not with `#`\n  1 | # a comment\n    | ^^^^^^^^^^^",
        ),
        ("workers 4 # four", "1:11: comments begin with `//`, not with `#`"),
        ("drain-time 30s;", "1:12: this needs quotes: \"30s\"\n  1 | drain-time 30s;\n    |            ^^^"),
        ("access-log a buffer=256KiB", "1:21: this needs quotes: \"256KiB\""),
        ("site a {\n  route /api {\n  }\n}", "2:9: this needs quotes: \"/api\""),
        ("listen 127.0.0.1:80", "1:8: this needs quotes: \"127.0.0.1:80\""),
        ("drain-time \"30s", "1:12: "),
        ("site a {", "1:"),
        ("site a }", "1:8: "),
        ("", "1:1: it is empty; a site file needs something to serve"),
    ] {
        let message = read(text).unwrap_err();
        assert!(message.starts_with(&format!("a.kdl:{expected}")), "{text}\n{message}");
    }
}

#[test]
fn all_mistakes_are_found() {
    let equals = "leave out this `=`: a setting and its value are separated by a space";
    for (text, expected) in [
        (
            "lisen 80\nworkers \"4\"\nsite a {\n  spa onn\n  route \"/\" { spa; respond; }\n}",
            &[
                "1:1: unknown setting `lisen` at the top of the file; did you mean `listen`?",
                "2:9: `workers` needs a whole number, not a text",
                "4:7: spa: got `onn`, need on or off; did you mean `on`?",
                "5:15: `spa` is not allowed in a route, only at the top of the file or in a site",
                "5:20: `respond` needs a whole number",
            ][..],
        ),
        // In the braces of a word that one can guess.
        (
            "location \"/\"\nsit a { workers 4; }",
            &[
                "1:1: unknown setting `location` at the top of the file; here it is `route`",
                "2:1: unknown setting `sit` at the top of the file; did you mean `site`?",
                "2:9: `workers` is not allowed in a site, only at the top of the file",
            ],
        ),
        // Habits are mended, and the rest is read.
        (
            "workers = 4\nspa=true\nlisen 80",
            &[
                &format!("1:9: {equals}"),
                &format!("2:4: {equals}"),
                "2:5: got `true`, need on, or #true with a #",
                "3:1: unknown setting `lisen` at the top of the file; did you mean `listen`?",
            ],
        ),
        (
            "drain-time 30s\nsite a {\n  route /api { respond 2x0; } # all\n  lisen\n}",
            &[
                "1:12: this needs quotes: \"30s\"",
                "3:9: this needs quotes: \"/api\"",
                "3:24: this needs quotes: \"2x0\"",
                "3:31: comments begin with `//`, not with `#`",
                "4:3: unknown setting `lisen` in a site; did you mean `listen`?",
            ],
        ),
        (
            "listen '127.0.0.1:80'\nspa false // é = true\naccess-log \"a b\" gzip=true é=1",
            &[
                "1:8: text needs double quotes: \"127.0.0.1:80\"",
                "2:5: got `false`, need off, or #false with a #",
                "3:23: got `true`, need on, or #true with a #",
                "3:28: `access-log` has no `é=`; it has buffer=, gzip=",
            ],
        ),
        (
            "site a {\n  route \"/\" {\n    respond 200\n}\n",
            &["2:13: this `{` is not closed: a `}` is missing"],
        ),
        ("listen \"80\nworkers 4\nspa \"", &["1:8: this text has no closing quote on its line"]),
    ] {
        assert_eq!(mistakes(text), expected, "{text}");
    }
}

/// The largest files of a kind that parsers are slow on.
#[test]
fn the_largest_file_is_read_in_time() {
    let bounds = SITE_FILE;
    for part in
        ["site a {", "spa;", "/*", "site \"", "(", "header ", "é", "a=1 ", "\\\n", "#\"", "/-", "// a\n"]
    {
        let count = if part.contains(['{', '(', '*']) {
            bounds.openings_max
        } else {
            bounds.chunk_bytes_max / 4 / part.len()
        };
        let begun = Instant::now();
        let _ = read(&part.repeat(count));
        assert!(begun.elapsed() < Duration::from_secs(20), "{part:?} took {:?}", begun.elapsed());
    }
}

#[test]
fn files_are_formatted_with_their_comments() {
    for (text, expected) in [
        ("workers   4;spa", "workers 4\nspa\n"),
        (
            "\n\n// one\n\n\n// two\nworkers 4 // four\n\n\n\nspa\nsite  \"a\"   b {\n\n // in\nroute \"/\" {respond 200 \"a  b\"}\n\n/* x */ route \"/b\"   { }\n // end\n}\n// last",
            "// one\n\n// two\nworkers 4 // four\n\nspa\nsite \"a\" b {\n    // in\n    route \"/\" {\n        respond 200 \"a  b\"\n    }\n\n    /* x */ route \"/b\" {}\n    // end\n}\n// last\n",
        ),
        (
            "spa \\ // why\n   on; workers 4; // four\nsite a { // in\nallow   all }",
            "spa \\ // why\n    on\nworkers 4 // four\nsite a { // in\n    allow all\n}\n",
        ),
        ("access-log   \"a\"   buffer=\"1KiB\"\r\nspa\r\n", "access-log \"a\" buffer=\"1KiB\"\nspa\n"),
        ("site a {\n  /- spa\n  allow all\n}", "site a {\n    /- spa\n    allow all\n}\n"),
    ] {
        let once = formatted(&source(text)).map_err(|mistake| mistake.to_string()).unwrap();
        assert_eq!(once, expected, "{text}");
        assert_eq!(formatted(&source(&once)).unwrap(), once);
    }
}

/// A file that is parsed in chunks: ten thousand sites, as large hosts have them.
#[test]
fn long_files_are_read_as_short_ones() {
    let site =
        |at: usize| format!("site \"s{at}.test\" {{\n    spa\n    route \"/a\" {{ respond 200; }}\n}}\n");
    let sites: Vec<String> = (0..10_000).map(site).collect();
    let text = format!("listen 80\n{}workers 4\n", sites.concat());
    let tree = read(&text).unwrap();
    assert_eq!(tree.len(), 10_002);
    let last = &tree[10_000];
    assert_eq!(
        (last.values[0].text.as_str(), &text[last.values[0].at.clone()]),
        ("s9999.test", "\"s9999.test\"")
    );
    assert_eq!(formatted(&source(&text.replace("    ", " "))).unwrap().matches("site ").count(), 10_000);
    // Mistakes have the lines of the whole file, and are found in all chunks.
    let lines = text.lines().count();
    let wrong = format!("spaa\n{text}spaa\n");
    let found = mistakes(&wrong);
    let places: Vec<&str> = found.iter().map(|it| it.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["1:1", &format!("{}:1", lines + 2)]);
    let twice = mistakes(&format!("{text}workers 5\n"));
    assert!(twice[0].contains("given twice; first on line 40002"), "{twice:?}");
}

#[test]
fn a_block_of_a_long_file_has_limits() {
    let text = |block: &str| format!("{}{block}", "site a {\n    spa\n}\n".repeat(5000));
    let refused = |block: &str| {
        let text = text(block).into_bytes();
        Source::new("a.kdl", text, &SITE_FILE).unwrap_err().to_string()
    };
    let deep = refused(&format!("site a {{\n{}}}\n", "route a { spa; }\n".repeat(9000)));
    assert!(deep.contains("more than 8192 braces"), "{deep}");
    let long = refused(&format!("site a {{\n{}}}\n", "# spa\n".repeat(200_000)));
    assert!(long.starts_with("a.kdl:15001:1: a block has more than 1024 KiB"), "{long}");
    let open = refused(&format!("site a {{\n{}", "    route a { spa; }\n".repeat(60_000)));
    assert!(open.starts_with("a.kdl:15001:8: this `{` is not closed"), "{open}");
}

/// Files of another kind, given by mistake, and files with a mistake in each block.
#[test]
fn long_files_with_mistakes_are_refused_in_time() {
    let begun = Instant::now();
    let braces = Source::new("a.kdl", "{".repeat(2 << 20).into_bytes(), &SITE_FILE).unwrap_err().to_string();
    assert!(braces.contains("more than 8192 braces"), "{braces}");
    let found = mistakes(&"site a {\n    spa = on\n}\n".repeat(20_000));
    assert!(!found.is_empty() && found.len() < 1100, "{}", found.len());
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}
