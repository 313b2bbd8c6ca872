//! Help, usage errors and settings.

use std::time::{Duration, Instant};

use crate::harness::{Fixture, Program, busy_script};

#[test]
fn usage_errors_are_explained_and_exit_64() {
    let fixture = Fixture::new();
    for arguments in [
        &["run", "role"][..],
        &["run", "role", "--ttl", "soon", "--", "true"],
        &["run", "a b", "--", "true"],
        &["run", "role", "--ttl", "1s", "--stop-timeout", "5s", "--", "true"],
        &["--store", "ftp://host", "leader", "role"],
        &["--store", "redis://", "leader", "role"],
        &["--config", "/no/such/file", "leader", "role"],
        &["dance"],
        // A key would be two things, or another namespace's.
        &["--keys-lease", "session:", "status"],
        &["--keys-session", "poll:lease:x:", "status"],
        &["--keys-heartbeat", "{leader}:x:", "status"],
        &["--namespace", "session", "status"],
        &["--namespace", "a:leader", "status"],
    ] {
        let output = fixture.output(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {output:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn every_command_has_help() {
    let fixture = Fixture::new();
    let help = String::from_utf8(fixture.output(&["--help"]).stdout).unwrap();
    for command in ["serve", "run", "session", "status", "leader", "step-down", "drain", "undrain", "revoke", "watch"] {
        assert!(help.contains(command), "{help}");
        let output = fixture.output(&[command, "--help"]);
        assert!(output.status.success() && output.stdout.len() > 200, "{output:?}");
    }
    assert!(!help.contains("__guard"), "the guardian command is hidden");
    assert!(fixture.output(&["--version"]).status.success());
}

#[test]
fn a_secret_in_a_url_is_not_repeated() {
    let fixture = Fixture::new();
    for url in ["redis://me:hunter2@127.0.0.1:1", "redis://me:hunter2@h:99999", "redis://h/hunter2"] {
        let output = fixture.output(&["--store", url, "leader", "role"]);
        assert!(!output.status.success());
        assert!(!String::from_utf8_lossy(&output.stderr).contains("hunter2"), "{output:?}");
    }
}

#[test]
fn errors_of_the_parsers_repeat_no_password() {
    const URL: &str = "redis://me:hunter2@h";
    let fixture = Fixture::new();
    let check = |arguments: &[&str], variable: Option<(&str, &str)>| {
        for format in ["text", "json"] {
            let mut command = fixture.plain(arguments);
            // `--log` itself may be invalid.
            command.env("TENURE_LOG", format).envs(variable);
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
            assert!(matches!(output.status.code(), Some(1 | 64)), "{arguments:?} {variable:?}: {said}");
            assert!(!said.contains("hunter2"), "{arguments:?} {variable:?}: {said}");
            assert!(said.len() > 20, "{arguments:?} {variable:?}: {said}");
        }
    };
    for arguments in [
        &["--store", "redis://me:hunter2@h:notaport", "status"][..],
        &["status", URL],
        &["status", "me:hunter2@h"],
        &["status", "--", URL],
        &[URL, "status"],
        &["--storeredis://me:hunter2@h", "status"],
        &["--stroe=redis://me:hunter2@h", "status"],
        &["--json=redis://me:hunter2@h", "status"],
        &["--log", URL, "status"],
        &["--log-level", URL, "status"],
        &["--config", URL, "status"],
        &["serve", "--listen", URL],
        &["serve", "--weight", URL],
        &["serve", "--ttl", URL],
        &["serve", "--backoff", "redis://me:\"hunter2@h"],
        &["serve", "--max-body", URL],
        &["serve", "--allow-targets", "10.0.0.0/8,redis://me:hunter2@h"],
        &["session", "rm", URL],
        &["session", "add", "--url", "http://me:hunter2@h:notaport"],
        &["session", "add", "--url", "http://h", "--header", "hunter2"],
        &["session", "add", "--url", "http://h", "--header=hunter2"],
        &["session", "add", "--url", "http://h", "--header", "X-Key:", "hunter2"],
        &["session", "add", "--url", "http://h", "--header", "X-Key: @hunter2"],
    ] {
        check(arguments, None);
    }
    for (variable, value) in [
        ("TENURE_STORE", "redis://me:hunter2@h:notaport"),
        ("TENURE_LOG_LEVEL", URL),
        ("TENURE_JSON", URL),
        ("TENURE_BOOTSTRAP", "me:hunter2@h"),
        ("TENURE_CONFIG", URL),
    ] {
        check(&["status"], Some((variable, value)));
    }
    check(&["session", "add", "--url", "http://h"], Some(("TENURE_HEADERS", "hunter2")));
    let config = fixture.path("tenure.toml").display().to_string();
    for text in [
        "store = \"redis://me:hunter2@h\n",
        "store = 'redis://me:hunter2@h\n",
        "store = redis://me:hunter2@h\n",
        "store = \"redis://me:hunter2@h\" x\n",
        "store = \"a\"\nstore = \"redis://me:hunter2@h\"\n",
        "store = \"\"\"redis://me:hunter2@h\n",
        "store = \"redis://me:hunter2\\q@h\"\n",
        "redis://me:hunter2@h\n",
        "\"redis://me:hunter2@h\" = 1\n",
        "\"redis://me:hunter2@h\" = {a = {b = 1}}\n",
        "store = {url = \"redis://me:hunter2@h\"}\n",
        "log-level = \"redis://me:hunter2@h\"\n",
        "json = \"redis://me:hunter2@h\"\n",
    ] {
        std::fs::write(&config, text).unwrap();
        check(&["--config", &config, "status"], None);
    }
    std::fs::write(&config, "headers = \"hunter2\"\n").unwrap();
    check(&["--config", &config, "session", "add", "--url", "http://h"], None);
    // The error names the position.
    std::fs::write(&config, "ttl = \"5s\"\nstore = \"redis://me:hunter2@h\n").unwrap();
    let said = String::from_utf8(fixture.output(&["--config", &config, "status"]).stderr).unwrap();
    assert!(said.contains("line 2, column 30"), "{said}");
    let help = fixture.plain(&["session", "add", "--help"]).env("TENURE_URL", "http://me:hunter2@h").output().unwrap();
    assert!(!String::from_utf8_lossy(&help.stdout).contains("hunter2"), "{help:?}");
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let fixture = Fixture::new();
    let named = |name: &str| format!("sqlite:{}", fixture.path(name).display());
    let file = format!("store = \"{}\"\nlog-level = \"off\"\n[keys]\nleader = \"boss:\"\n", named("file.db"));
    std::fs::write(fixture.path("tenure.toml"), file).unwrap();
    let config = fixture.path("tenure.toml").display().to_string();
    let add = ["--config", &config, "session", "add", "--url", "http://a"];
    assert!(fixture.tenure(&add).env_remove("TENURE_STORE").status().unwrap().success());
    assert!(fixture.path("file.db").exists());
    assert!(fixture.tenure(&add).env("TENURE_STORE", named("environment.db")).status().unwrap().success());
    assert!(fixture.path("environment.db").exists());
    assert!(fixture.tenure(&[&add[..], &["--store", &named("flag.db")]].concat()).status().unwrap().success());
    assert!(fixture.path("flag.db").exists());
    std::fs::write(fixture.path("tenure.toml"), "stoer = \"x\"\n").unwrap();
    let output = fixture.output(&["--config", &config, "leader", "x"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("stoer"), "{output:?}");
}

/// Each case names the flags, the variables and the lines of the file.
#[test]
fn between_wait_and_no_wait_the_higher_source_wins() {
    let fixture = Fixture::new();
    let _leads = fixture.run("role", &[], &busy_script("log"));
    fixture.lines("log", 1);
    let start = |flags: &[&str], variables: &[(&str, &str)], file: &str| {
        std::fs::write(fixture.path("tenure.toml"), file).unwrap();
        let mut command = fixture.tenure(&[&["run", "role"][..], flags, &["--", "true"]].concat());
        command.env("TENURE_CONFIG", fixture.path("tenure.toml")).envs(variables.iter().copied());
        Program::spawn(command)
    };
    // Too long for this test to wait.
    let long = ("TENURE_WAIT", "1h");
    for (flags, variables, file) in [
        (&["--no-wait"][..], &[long][..], ""),
        (&["--no-wait"], &[], "wait = \"1h\""),
        (&[], &[("TENURE_NO_WAIT", "yes")], "wait = \"1h\""),
        (&["--no-wait"], &[("TENURE_NO_WAIT", "no"), long], "wait = \"1h\""),
    ] {
        assert_eq!(start(flags, variables, file).wait_exit(), 75, "{flags:?} {variables:?} {file}");
    }
    let short = ("TENURE_WAIT", "1s");
    for (flags, variables, file) in [
        (&["--wait", "1s"][..], &[("TENURE_NO_WAIT", "yes")][..], ""),
        (&["--wait", "1s"], &[], "no-wait = true"),
        (&[], &[short], "no-wait = true"),
        (&[], &[short, ("TENURE_NO_WAIT", "no")], "no-wait = true"),
        (&[], &[("TENURE_NO_WAIT", "no")], "wait = \"1s\""),
    ] {
        let began = Instant::now();
        assert_eq!(start(flags, variables, file).wait_exit(), 75, "{flags:?} {variables:?} {file}");
        assert!(began.elapsed() >= Duration::from_secs(1), "the program did not wait: {flags:?} {variables:?} {file}");
    }
    for (flags, variables, file) in [
        (&["--wait", "1s", "--no-wait"][..], &[][..], ""),
        (&[], &[short, ("TENURE_NO_WAIT", "yes")], ""),
        (&[], &[], "wait = \"1s\"\nno-wait = true"),
    ] {
        assert_eq!(start(flags, variables, file).wait_exit(), 64, "{flags:?} {variables:?} {file}");
    }
}

/// A full pipe that is not read must not hold up a usage error.
#[test]
fn a_usage_error_ends_on_a_full_pipe() {
    use std::process::Stdio;
    let fixture = Fixture::new();
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&reader, 4_096).unwrap();
    std::io::Write::write_all(&mut writer, &[b'x'; 4_096]).unwrap();
    let mut process = fixture.tenure(&["status", "--bogus"]).stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    crate::harness::wait_until("it exits", || process.try_wait().unwrap().is_some());
    assert_eq!(process.wait().unwrap().code(), Some(64));
    drop(reader);
}
