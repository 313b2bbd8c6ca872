//! Help, mistakes and settings.

use crate::stage::Place;

#[test]
fn mistakes_are_said_and_have_their_own_status() {
    let place = Place::new();
    for arguments in [
        &["run", "role"][..],
        &["run", "role", "--ttl", "soon", "--", "true"],
        &["run", "a b", "--", "true"],
        &["run", "role", "--ttl", "1s", "--stop-timeout", "5s", "--", "true"],
        &["--store", "ftp://host", "leader", "role"],
        &["--store", "redis://", "leader", "role"],
        &["--config", "/no/such/file", "leader", "role"],
        &["dance"],
    ] {
        let output = place.output(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {output:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn every_command_has_help() {
    let place = Place::new();
    let help = String::from_utf8(place.output(&["--help"]).stdout).unwrap();
    for command in ["serve", "run", "session", "status", "leader", "step-down", "drain", "undrain", "revoke", "watch"] {
        assert!(help.contains(command), "{help}");
        let output = place.output(&[command, "--help"]);
        assert!(output.status.success() && output.stdout.len() > 200, "{output:?}");
    }
    assert!(!help.contains("__guard"), "that is nobody's business");
    assert!(place.output(&["--version"]).status.success());
}

#[test]
fn a_secret_in_a_url_is_not_repeated() {
    let place = Place::new();
    for url in ["redis://me:hunter2@127.0.0.1:1", "redis://me:hunter2@h:99999", "redis://h/hunter2"] {
        let output = place.output(&["--store", url, "leader", "role"]);
        assert!(!output.status.success());
        assert!(!String::from_utf8_lossy(&output.stderr).contains("hunter2"), "{output:?}");
    }
}

#[test]
fn flags_come_before_the_environment_before_the_file() {
    let place = Place::new();
    let named = |name: &str| format!("sqlite:{}", place.path(name).display());
    let file = format!("store = \"{}\"\nlog-level = \"off\"\n[keys]\nleader = \"boss:\"\n", named("file.db"));
    std::fs::write(place.path("tenure.toml"), file).unwrap();
    let config = place.path("tenure.toml").display().to_string();
    let add = ["--config", &config, "session", "add", "--url", "http://a"];
    assert!(place.tenure(&add).env_remove("TENURE_STORE").status().unwrap().success());
    assert!(place.path("file.db").exists());
    assert!(place.tenure(&add).env("TENURE_STORE", named("environment.db")).status().unwrap().success());
    assert!(place.path("environment.db").exists());
    assert!(place.tenure(&[&add[..], &["--store", &named("flag.db")]].concat()).status().unwrap().success());
    assert!(place.path("flag.db").exists());
    std::fs::write(place.path("tenure.toml"), "stoer = \"x\"\n").unwrap();
    let output = place.output(&["--config", &config, "leader", "x"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("stoer"), "{output:?}");
}
