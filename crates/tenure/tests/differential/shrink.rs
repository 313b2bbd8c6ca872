//! Shrinks a sequence to the operations that the difference needs.

use crate::fixture::DifferentialFixture;
use crate::run::{Difference, DifferentialRun};
use crate::sequence::Operation;

/// Removes operations, and requests of batches, while a difference remains.
pub(crate) async fn shrink_sequence(
    fixture: &dyn DifferentialFixture,
    mut operations: Vec<Operation>,
    found: Difference,
) -> (Vec<Operation>, Difference) {
    let mut difference = found;
    operations.truncate(difference.at + 1);
    loop {
        let mut shorter = Vec::new();
        for at in (0..operations.len()).rev() {
            let mut without = operations.clone();
            without.remove(at);
            shorter.push(without);
            if let Operation::Submit { client, batch } = &operations[at]
                && batch.len() > 1
            {
                for request in 0..batch.len() {
                    let mut without = operations.clone();
                    let mut batch = batch.clone();
                    batch.remove(request);
                    without[at] = Operation::Submit { client: *client, batch };
                    shorter.push(without);
                }
            }
        }
        let mut progress = false;
        for without in shorter {
            if let Err(still) = DifferentialRun::execute(fixture, &without).await {
                (operations, difference, progress) = (without, still, true);
                operations.truncate(difference.at + 1);
                break;
            }
        }
        if !progress {
            return (operations, difference);
        }
    }
}
