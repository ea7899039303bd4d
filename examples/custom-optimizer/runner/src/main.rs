//! The demo with one more algorithm: `signum`, from the library beside this program.

use custom_optimizer_method::Signum;
use gaggle_demo::{rules::Rules, run_with};
use std::process::ExitCode;

fn main() -> ExitCode {
    let about = "sign descent with momentum; parameters averaged with neighbours";
    run_with(Rules::default().with("signum", about, |config| {
        Ok(Box::new(Signum::new(config.momentum)))
    }))
}
