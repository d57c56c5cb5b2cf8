//! Data flows one way: each room uses only the rooms that the table of the design allows. A new edge is a deliberate
//! one-line change here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Room → rooms that it may use. `units` are the words of all and not listed; `cli` may use everything.
const MAY_USE: &[(&str, &[&str])] = &[
    ("profile", &[]),
    ("text", &[]),
    ("workload", &["profile", "text"]),
    ("clock", &[]),
    ("lanes", &[]),
    ("wire", &[]),
    ("record", &[]),
    ("client", &["wire", "record", "workload", "clock", "lanes", "stats"]),
    ("drive", &["workload", "record", "clock", "lanes"]),
    ("target", &["wire", "record", "clock"]),
    ("policy", &[]),
    ("stats", &[]),
    ("report", &["record", "stats", "workload", "profile", "text"]),
    ("experiment", &["profile", "report", "compare"]),
    ("compare", &["report", "stats"]),
    ("store", &["record", "report", "compare", "experiment"]),
    ("render", &["report", "compare", "experiment", "stats", "workload"]),
    ("sim", &["policy", "clock"]),
    ("units", &[]),
];

#[test]
fn every_room_uses_only_what_the_design_allows() {
    let rooms: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let mut wrong = vec![];
    let mut seen = BTreeSet::new();
    for file in source_files(&root().join("src")) {
        let room = room_of(&file);
        if matches!(room.as_str(), "cli" | "main" | "lib") {
            continue;
        }
        let allowed =
            rooms.get(room.as_str()).unwrap_or_else(|| panic!("`{room}` is a room that the table does not know"));
        seen.insert(room.clone());
        for used in used_rooms(&fs::read_to_string(&file).unwrap()) {
            if used != room && used != "units" && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{}: `{room}` uses `{used}`", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(seen.len(), rooms.len(), "the table names a room that is not there");
}

/// Rooms named by `crate::` paths, outside of tests.
fn used_rooms(source: &str) -> BTreeSet<String> {
    let code = without_tests(source);
    let lines = code.into_iter().filter(|line| !line.trim_start().starts_with("//"));
    let mut rooms = BTreeSet::new();
    for line in lines {
        for path in line.split("crate::").skip(1) {
            let name: String = path.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            rooms.insert(name);
        }
        // `use crate::{a, b}` would hide rooms from this test.
        assert!(!line.contains("crate::{"), "name each room on a line of its own: {line}");
    }
    rooms.remove("");
    rooms
}

/// The lines of a formatted file that are in no item under `#[cfg(test)]`. Such an item ends on its first line, or with
/// the first closing brace that stands as far in as its attribute.
fn without_tests(source: &str) -> Vec<&str> {
    let mut kept = vec![];
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push(line);
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let is_last = |line: &str| line.strip_prefix(indent).is_some_and(|rest| matches!(rest, "}" | "};"));
        let first = lines.by_ref().find(|line| !line.trim_start().starts_with("#["));
        if first.is_some_and(|line| !line.ends_with([';', '}'])) {
            lines.by_ref().find(|line| is_last(line));
        }
    }
    kept
}

/// Files that may name the wall clock, with how often each reads it. Two write the date down (of a run's start, in the
/// default name of its folder), one tells the simulator the Unix time at its clock's zero, the others only write dates.
const WALL: &[(&str, usize)] = &[
    ("src/cli/block/mod.rs", 1),
    ("src/render/hlog.rs", 0),
    ("src/sim/http/control.rs", 0),
    ("src/sim/http/mod.rs", 1),
    ("src/stats/interval_log.rs", 0),
    ("src/store/dir.rs", 1),
];

/// Row B54: a wall clock may be set back at any time, so durations are of monotonic clocks only. Each read in a file is one
/// look, and no two looks can be held against each other.
#[test]
fn no_duration_is_of_the_wall_clock() {
    const OTHERS: [&str; 6] =
        ["ClockId::Realtime", ".modified()", ".created()", ".accessed()", "Utc::now", "Local::now"];
    let mut found = vec![];
    for file in source_files(&root().join("src")) {
        let source = fs::read_to_string(&file).unwrap();
        let code: Vec<_> =
            without_tests(&source).into_iter().filter(|line| !line.trim_start().starts_with("//")).collect();
        let name = file.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        let has = |needle: &str| code.iter().any(|line| line.contains(needle));
        let other = OTHERS.iter().find(|needle| has(needle));
        assert_eq!(other, None, "{name} reads the wall clock");
        if has("SystemTime") || has("UNIX_EPOCH") {
            assert!(!has("SystemTime as") && !has("UNIX_EPOCH.elapsed"), "{name} reads the wall clock by another name");
            found.push((name, code.iter().map(|line| line.matches("SystemTime::now").count()).sum()));
        }
    }
    found.sort();
    let allowed: Vec<(String, usize)> = WALL.iter().map(|(name, reads)| ((*name).to_owned(), *reads)).collect();
    assert_eq!(found, allowed, "a new look at the wall clock is a deliberate line in this table");
}

fn room_of(file: &Path) -> String {
    let inside = file.strip_prefix(root().join("src")).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// Source files, without those that hold only tests.
fn source_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = vec![];
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            files.extend(source_files(&path));
        } else if path.extension().is_some_and(|end| end == "rs") && name != "tests" && !name.ends_with("_tests") {
            files.push(path);
        }
    }
    files
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_reader_of_paths_sees_what_it_should() {
    let source = "use crate::wire::Sse;\nlet x = crate::stats::mean(1);\n// crate::sim\n#[cfg(test)]\nuse crate::cli::Exit;\n\
                  mod a {\n    #[cfg(test)]\n    #[path = \"b\"]\n    mod b;\n    #[cfg(test)]\n    fn c(\n    ) {\n        \
                  crate::cli::d();\n    }\n    use crate::text::Word;\n}\n\
                  #[cfg(test)]\nmod tests {\n    fn e() {\n    }\n    use crate::cli::Exit;\n}\nuse crate::drive::Stop;\n";
    assert_eq!(used_rooms(source).into_iter().collect::<Vec<_>>(), ["drive", "stats", "text", "wire"]);
}
