//! Update rules alone: one rank, plain gradient descent on x²/2, by the driver that many ranks use.

use gaggle_optim::{Decentralised, RuleConfig, rule_by_name, testing::DenseMixer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rule = rule_by_name::<f64>("dsgd-atc", &RuleConfig::default())?;
    let mixer = DenseMixer::<f64>::world(1, |_, _, _| 1.0).remove(0);
    let mut driver = Decentralised::unchecked(rule, Box::new(mixer), 1);
    let mut x = [1.0];
    for _ in 0..10 {
        driver.before_forward(0.1, &mut x)?;
        let g = x;
        driver.step(0.1, &mut x, &g)?;
    }
    println!("{x:?}");
    Ok(())
}
