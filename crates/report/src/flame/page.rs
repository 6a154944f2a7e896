//! One page that needs no network: the areas as a table, the stacks as flame graphs.
//!
//! The page (`page.html`) contains the drawing code; its data is inserted as JSON: one tree of frames, whose nodes
//! have a value for each graph, so that all graphs zoom and search together.
//!
//! Two profiles have three graphs: each in its own shape, and their difference in the combined shape. In the shape of
//! one, frames that only the other has would be missing.

use std::collections::HashMap;

use flatout_profile::{Comparison, Kind, Profile};
use serde::Serialize;

use super::unit::{Unit, facts, idle_share};
use crate::ResultOrigin;

const TEMPLATE: &str = include_str!("page.html");

/// Where the template's data goes.
const DATA_MARK: &str = "\"DATA\"";

/// Where the template's title goes.
const TITLE_MARK: &str = "TITLE";

/// The graph of the difference, after those of the two profiles.
const DIFFERENCE: usize = 2;

/// Nodes below this share of every graph are left out: no screen can show them.
const SHARE_MIN: f64 = 0.0001;

#[derive(Serialize)]
struct Page<'p> {
    title: String,
    command: &'p str,
    date: &'p str,
    heading: &'static str,
    divisor: f64,
    digits: usize,
    is_share: bool,
    graphs: Vec<Graph>,
    areas: Vec<AreaRow>,
    notes: Vec<&'p str>,
    tree: Tree,
}

/// One flame graph.
#[derive(Serialize)]
struct Graph {
    name: &'static str,
    facts: String,
    total: f64,
    idle: Option<f64>,
}

#[derive(Serialize)]
struct AreaRow {
    name: &'static str,
    about: &'static str,
    values: Vec<f64>,
}

/// Nodes with a parent before its children; node 0 is all.
#[derive(Serialize)]
struct Tree {
    names: Vec<String>,
    kinds: Vec<&'static str>,
    parents: Vec<usize>,
    /// For each node an index into `names` and `kinds`.
    frames: Vec<usize>,
    /// For each node its value in each graph, including its descendants.
    values: Vec<Vec<f64>>,
}

/// The page of one profile.
pub fn page(profile: &Profile, origin: &ResultOrigin) -> String {
    let (unit, scale) = Unit::of(profile);
    let areas = profile.areas().into_iter().map(|cost| AreaRow {
        name: cost.area.name,
        about: cost.area.about,
        values: vec![cost.weight as f64 * scale],
    });
    render(&profile.what, unit, areas.collect(), &[("", profile, scale)], origin)
}

/// The page of two profiles on one scale: before, after, and the difference.
pub fn comparison_page(
    before: &Profile,
    after: &Profile,
    comparison: &Comparison,
    origin: &ResultOrigin,
) -> String {
    let areas = comparison.areas.iter().map(|(area, before, after)| AreaRow {
        name: area.name,
        about: area.about,
        values: vec![*before, *after],
    });
    let unit = Unit::of_comparison(comparison);
    let title = match before.what == after.what {
        true => before.what.clone(),
        false => format!("{} → {}", before.what, after.what),
    };
    let graphs = [("before", before, comparison.before_scale), ("after", after, comparison.after_scale)];
    render(&title, unit, areas.collect(), &graphs, origin)
}

fn render(
    title: &str,
    unit: Unit,
    mut areas: Vec<AreaRow>,
    profiles: &[(&'static str, &Profile, f64)],
    origin: &ResultOrigin,
) -> String {
    areas.retain(|row| row.values.iter().any(|&value| value > 0.0));
    areas.sort_by(|one, other| {
        other.values.last().partial_cmp(&one.values.last()).unwrap_or(std::cmp::Ordering::Equal)
    });
    let tree = Tree::of(profiles);
    let mut graphs: Vec<Graph> = profiles
        .iter()
        .map(|&(name, profile, scale)| Graph {
            name,
            facts: facts(profile),
            total: profile.stacks.weight() as f64 * scale,
            idle: idle_share(profile),
        })
        .collect();
    if let Some(&total) = tree.values[0].get(DIFFERENCE) {
        graphs.push(Graph { name: "difference", facts: String::new(), total, idle: None });
    }
    let mut notes: Vec<&str> =
        profiles.iter().flat_map(|(_, profile, _)| &profile.notes).map(String::as_str).collect();
    notes.dedup();
    let page = Page {
        title: title.to_owned(),
        command: &origin.command,
        date: &origin.date,
        heading: unit.heading(),
        divisor: unit.divisor(),
        digits: unit.digits(),
        is_share: unit == Unit::Share,
        graphs,
        areas,
        notes,
        tree,
    };
    // `<` could end the script that contains the data; escaped, it is the same JSON.
    let data = serde_json::to_string(&page).unwrap_or_default().replace('<', "\\u003c");
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    TEMPLATE.replacen(TITLE_MARK, &title, 1).replacen(DATA_MARK, &data, 1)
}

impl Tree {
    fn of(profiles: &[(&'static str, &Profile, f64)]) -> Tree {
        let mut tree = Tree {
            names: vec!["all".to_owned()],
            kinds: vec![class(Kind::Root)],
            parents: vec![0],
            frames: vec![0],
            values: vec![vec![0.0; profiles.len()]],
        };
        let mut children: HashMap<(usize, usize), usize> = HashMap::new();
        let mut known = HashMap::new();
        for (graph, (_, profile, scale)) in profiles.iter().enumerate() {
            for stack in profile.stacks.iter() {
                let value = stack.weight as f64 * scale;
                let mut node = 0;
                tree.values[node][graph] += value;
                for frame in stack.frames {
                    let index =
                        *known.entry(frame.clone()).or_insert_with(|| tree.name(&frame.name, frame.kind));
                    node = *children
                        .entry((node, index))
                        .or_insert_with(|| tree.node(node, index, profiles.len()));
                    tree.values[node][graph] += value;
                }
            }
        }
        if profiles.len() == DIFFERENCE {
            tree.add_difference();
        }
        tree.without_slivers()
    }

    /// Gives each node of two graphs a value in a third one: its own cost is the larger of both, plus everything
    /// below it. So every frame of either graph is shown, none is narrower than in either, and children fit into
    /// their parents.
    fn add_difference(&mut self) {
        let mut own = self.values.clone();
        for (node, values) in self.values.iter().enumerate().skip(1) {
            own[self.parents[node]].iter_mut().zip(values).for_each(|(own, below)| *own -= below);
        }
        let mut sums: Vec<f64> =
            own.iter().map(|own| own.iter().fold(0.0, |most: f64, own| most.max(*own))).collect();
        // Children come after their parents.
        for node in (1..sums.len()).rev() {
            sums[self.parents[node]] += sums[node];
        }
        self.values.iter_mut().zip(sums).for_each(|(values, sum)| values.push(sum));
    }

    fn name(&mut self, name: &str, kind: Kind) -> usize {
        self.names.push(name.to_owned());
        self.kinds.push(class(kind));
        self.names.len() - 1
    }

    fn node(&mut self, parent: usize, frame: usize, graph_count: usize) -> usize {
        self.parents.push(parent);
        self.frames.push(frame);
        self.values.push(vec![0.0; graph_count]);
        self.parents.len() - 1
    }

    /// The tree without nodes that are too small in every graph. Their ancestors are larger, and stay.
    fn without_slivers(self) -> Tree {
        let totals = self.values[0].clone();
        let is_seen = |values: &[f64]| {
            values.iter().zip(&totals).any(|(value, total)| *value >= total * SHARE_MIN && *value > 0.0)
        };
        let mut places = vec![0; self.parents.len()];
        let mut kept = Tree { parents: Vec::new(), frames: Vec::new(), values: Vec::new(), ..self };
        for (node, values) in self.values.into_iter().enumerate() {
            if node == 0 || is_seen(&values) {
                places[node] = kept.parents.len();
                kept.parents.push(places[self.parents[node]]);
                kept.frames.push(self.frames[node]);
                kept.values.push(values);
            }
        }
        kept
    }
}

/// The CSS class of a kind, for its colour.
fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Root => "r",
        Kind::User => "u",
        Kind::Inlined => "i",
        Kind::Kernel => "k",
    }
}

#[cfg(test)]
mod tests {
    use flatout_profile::{Frame, compare};

    use super::*;
    use crate::flame::scripted;

    #[test]
    fn the_template_has_its_marks_once() {
        assert_eq!(TEMPLATE.matches(DATA_MARK).count(), 1);
        assert_eq!(TEMPLATE.matches(TITLE_MARK).count(), 1);
    }

    #[test]
    fn nothing_in_a_profile_becomes_markup() {
        let html = page(&scripted::profile(Some(10.0), 5), &ResultOrigin::default());
        assert_eq!(html.matches("</script>").count(), 1);
        assert!(!html.contains("<b>"));
        assert!(!html.contains("http://") && !html.contains("https://"), "it needs no network");
    }

    #[test]
    fn nodes_contain_their_descendants() {
        let profile = scripted::profile(None, 1_000_000);
        let tree = Tree::of(&[("", &profile, 1.0)]);
        let value = |name: &str| {
            let frame = tree.names.iter().position(|other| other == name).unwrap();
            tree.values[tree.frames.iter().position(|&other| other == frame).unwrap()][0]
        };
        assert_eq!((value("all"), value("tcp_sendmsg"), value("nf_hook_slow")), (8e6, 5e6, 1e6));
        assert!(tree.parents.iter().enumerate().all(|(node, &parent)| parent <= node));
    }

    #[test]
    fn a_comparison_has_both_shapes_on_one_scale() {
        let (before, after) = (scripted::profile(Some(500.0), 1_000_000), scripted::profile(Some(1000.0), 0));
        let scales = compare(&before, &after).unwrap();
        let graphs = [("before", &before, scales.before_scale), ("after", &after, scales.after_scale)];
        let tree = Tree::of(&graphs);
        assert_eq!(tree.values[0][..2], [16_000.0, 7_000.0]);
        assert!(
            tree.values.iter().any(|values| values == &[2_000.0, 0.0, 2_000.0]),
            "what vanished is still there"
        );
        let html = comparison_page(&before, &after, &scales, &ResultOrigin::default());
        assert!(["before", "after", "difference"].iter().all(|name| html.contains(&format!("\"{name}\""))));
    }

    /// Removed and new frames are shown next to each other, with their old and new widths.
    #[test]
    fn the_difference_has_the_shape_of_both() {
        let mut before = Profile { stacks: Default::default(), ..scripted::profile(Some(100.0), 0) };
        let mut after = Profile { request_count: Some(200.0), ..before.clone() };
        let stack =
            |names: &[&str]| names.iter().map(|name| Frame::new(Kind::User, *name)).collect::<Vec<_>>();
        for (stacks, all) in [
            (&mut before.stacks, [(&["main", "old"][..], 300), (&["main", "same"], 100), (&["main"], 200)]),
            (
                &mut after.stacks,
                [(&["main", "new", "more"][..], 1000), (&["main", "same"], 400), (&["main"], 200)],
            ),
        ] {
            all.into_iter().for_each(|(names, weight)| stacks.add(stack(names), weight));
        }
        let scales = compare(&before, &after).unwrap();
        let graphs = [("before", &before, scales.before_scale), ("after", &after, scales.after_scale)];
        let tree = Tree::of(&graphs);
        let values = |name: &str| {
            let frame = tree.names.iter().position(|other| other == name).unwrap();
            tree.values[tree.frames.iter().position(|&other| other == frame).unwrap()].clone()
        };
        assert_eq!(values("old"), [3.0, 0.0, 3.0]);
        assert_eq!(values("new"), [0.0, 5.0, 5.0]);
        assert_eq!(values("more"), [0.0, 5.0, 5.0]);
        assert_eq!(values("same"), [1.0, 2.0, 2.0]);
        // 3 removed, 5 new, 2 of what grew, and the 2 of its own that it had before.
        assert_eq!(values("main"), [6.0, 8.0, 12.0]);
        assert_eq!(values("all"), values("main"));
    }

    #[test]
    fn slivers_are_left_out() {
        let mut profile = scripted::profile(None, 0);
        profile.stacks.add([Frame::new(Kind::User, "rare")], 10);
        let tree = Tree::of(&[("", &profile, 1.0)]);
        let rare = tree.names.iter().position(|name| name == "rare").unwrap();
        assert!(!tree.frames.contains(&rare));
    }
}
