//! The short form of the crowd: `cargo crowd` is the long one.

use anyhow::Result;
use tests::clients::crowd::{self, Plan};

#[test]
#[ignore = "a crowd: `cargo crowd` is its longer form"]
fn twelve_clients_of_all_kinds_half_of_them_killed_leave_nothing_behind() -> Result<()> {
    let threads = env!("CARGO_BIN_EXE_many_threads").into();
    let tally = crowd::run(Plan { clients: 12, at_once: 8, seed: 1, programs: crowd::SHORT }, threads)?;
    // Clients that are not to be killed survive; whether the others survive depends on the moments.
    assert!(tally.survived > 0 && tally.killed > 0, "nothing was shown: {tally:?}");
    assert_eq!(tally.survived + tally.killed, 12);
    Ok(())
}
