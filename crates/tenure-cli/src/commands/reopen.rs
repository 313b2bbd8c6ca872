//! `tenure reopen`: ends a quarantine on an operator's decision.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

use serde_json::{Value, json};
use tenure::store::{Quarantine, TermNote};
use tenure::{InstanceId, Tenure};
use tenure_serve::quarantine_json;

use super::watch::timestamp;
use crate::arguments::{ReopenArguments, StoreArguments};
use crate::exit::{CliError, DONE, NO};
use crate::notice::{failure, note};
use crate::output::print_line;

/// Number of term records to read: all that a store keeps.
const MAX_RECORDS: usize = 10_000;

/// A term without a recorded end.
struct OpenTerm {
    key: String,
    note: TermNote,
    /// Whether the store still lists the lease as held.
    holds_now: bool,
}

pub async fn reopen(store: &StoreArguments, arguments: ReopenArguments, json: bool) -> Result<u8, CliError> {
    let tenure = store.connect_existing().await?;
    let report = tenure.admin().namespace().await?;
    let (Some(generation), Some(quarantine)) = (report.generation, report.quarantine) else {
        if json {
            print_line(&json!({"quarantine": null, "holders": [], "instances": [], "reopened": false}).to_string())?;
        } else {
            note!("there is no quarantine");
        }
        tenure.shutdown().await;
        return Ok(DONE);
    };
    let open = open_terms(&tenure).await?;
    let instances: Vec<InstanceId> =
        tenure.fleet().instances().await?.into_iter().map(|member| member.instance).collect();
    if !json {
        print_holders(&quarantine, &open, &instances)?;
    }
    let reopened = (arguments.yes || confirm()?) && tenure.admin().reopen(generation).await?;
    if json {
        print_line(&reopen_json(&quarantine, &open, &instances, reopened).to_string())?;
    } else if reopened {
        note!("the quarantine is over");
    } else {
        failure!("nothing was changed");
    }
    tenure.shutdown().await;
    Ok(if reopened { DONE } else { NO })
}

/// Returns the last term of every lease, if its end is not recorded.
async fn open_terms(tenure: &Tenure) -> Result<Vec<OpenTerm>, CliError> {
    let mut last = BTreeMap::new();
    for note in tenure.admin().terms(MAX_RECORDS).await? {
        last.insert(tenure.admin().lease_key(&note.name), note);
    }
    let mut open = Vec::new();
    for (key, note) in last.into_iter().filter(|(_, note)| note.ending.is_none()) {
        let held = tenure.admin().inspect(&note.name).await?.held;
        open.push(OpenTerm { key, holds_now: held.is_some_and(|held| held.token == Some(note.token)), note });
    }
    Ok(open)
}

fn print_holders(quarantine: &Quarantine, open: &[OpenTerm], instances: &[InstanceId]) -> Result<(), CliError> {
    print_line(&quarantine.to_string())?;
    if open.is_empty() {
        print_line("holders: none on record; if the store lost its data, the records of holders are lost, too")?;
    } else {
        print_line("last known holders:")?;
    }
    for OpenTerm { key, note, holds_now } in open {
        let listed = if *holds_now { "still holds it" } else { "its lease is not in the store" };
        print_line(&format!("  {key}  {}  since {}  {listed}", note.holder, timestamp(note.from)))?;
    }
    let listed: Vec<&str> = instances.iter().map(InstanceId::as_str).collect();
    print_line(&format!(
        "instances with a heartbeat: {}",
        if listed.is_empty() { "none".to_owned() } else { listed.join(", ") }
    ))?;
    Ok(())
}

fn reopen_json(quarantine: &Quarantine, open: &[OpenTerm], instances: &[InstanceId], reopened: bool) -> Value {
    let holder = |OpenTerm { key, note, holds_now }: &OpenTerm| {
        json!({
            "lease": key,
            "holder": note.holder.as_str(),
            "token": note.token.get(),
            "since": timestamp(note.from),
            "holdsNow": holds_now,
        })
    };
    json!({
        "quarantine": quarantine_json(quarantine),
        "holders": open.iter().map(holder).collect::<Vec<_>>(),
        "instances": instances.iter().map(InstanceId::as_str).collect::<Vec<_>>(),
        "reopened": reopened,
    })
}

/// Asks for a confirmation at the terminal.
fn confirm() -> Result<bool, CliError> {
    if !std::io::stdin().is_terminal() {
        let message = "cannot ask for a confirmation: standard input is not a terminal; confirm with --yes";
        return Err(CliError::Usage(message.to_owned()));
    }
    eprint!(
        "Work of any of these that is still running will overlap with the next holder's. End the quarantine? [y/N] "
    );
    let failed = "cannot ask for a confirmation";
    std::io::stderr().flush().map_err(CliError::system(failed))?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(CliError::system(failed))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
