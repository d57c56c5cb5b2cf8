//! The scripts beside the program, as far as they can run without what they install.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::interrupt::wait_for;

/// The recipe's folder by which workers find the frontend: it is there while they run, and gone when they have ended.
#[test]
fn a_recipe_that_is_ended_leaves_no_folder_behind() {
    let engines = tempfile::tempdir().unwrap();
    let bin = engines.path().join("dynamo/bin");
    std::fs::create_dir_all(&bin).unwrap();
    // Stands for workers and frontend, and as they do writes into its home.
    std::fs::write(bin.join("python"), "#!/bin/sh\n: > \"$HOME/model\"\nexec sleep 60\n").unwrap();
    assert!(Command::new("chmod").arg("+x").arg(bin.join("python")).status().unwrap().success());
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/engines/dynamo");
    let mut running = Command::new(recipe)
        .args(["21999", "kv"])
        .env("ENGINES", engines.path())
        .env("WORKERS", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let folder = engines.path().join("dynamo-discovery-21999");
    wait_for("the folder", || folder.join("model").exists().then_some(()));
    kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
    assert!(running.wait().unwrap().success());
    let left: Vec<_> = std::fs::read_dir(engines.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["dynamo"]);
}
