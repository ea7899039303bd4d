//! Graphs alone: how fast does each mix, and what does its matrix look like?

use gaggle_topology::{OnePeerExp, TopologyError, by_name, check, facts, matrix};

fn main() -> Result<(), TopologyError> {
    let graph = OnePeerExp::new(8)?;
    check(&graph)?;
    println!("{:.3}", matrix(&graph, 0));
    println!("one peer {:.3}, ring {:.3}", facts(&graph).contraction, facts(&*by_name("ring", 8)?).contraction);
    Ok(())
}
