//! Local steps against PyTorch's documented rules: ten steps whose numbers come from elsewhere.
//!
//! Origin of the tables: a Python program of plain loops, written from the formulas in the documentation of `torch.optim.SGD` and `torch.optim.AdamW` and sharing nothing with this crate:
//!
//! ```text
//! SGD:    g = g + wd*x;  b = g at t = 1, mom*b + (1 - damp)*g later;  g = g + mom*b (nesterov) or b;  x = x - lr*g
//! AdamW:  x = x - lr*wd*x;  m = b1*m + (1 - b1)*g;  v = b2*v + (1 - b2)*g*g
//!         x = x - lr * m/(1 - b1**t) / (sqrt(v/(1 - b2**t)) + eps)
//! ```
//!
//! Gradient of element k in step t = 1..10: ((7t + 3k) mod 11 − 5)/4; start (1, −2, ½).

use gaggle_core::{Cx, Local};
use gaggle_optim::{AdamW, AdamWConfig, LocalRule, Sgd, SgdConfig};

type Steps = [[f64; 3]; 10];

/// Both programs round in another order; ten steps leave less than this.
const TOLERANCE: f64 = 1e-14;

const PLAIN: Steps = [
    [0.95, -2.125, 0.575],
    [1.0, -2.15, 0.475],
    [0.875, -2.0749999999999997, 0.475],
    [0.85, -2.175, 0.575],
    [0.925, -2.175, 0.49999999999999994],
    [0.8250000000000001, -2.0749999999999997, 0.5249999999999999],
    [0.8250000000000001, -2.15, 0.6499999999999999],
    [0.925, -2.125, 0.5999999999999999],
    [0.8500000000000001, -2.0, 0.6499999999999999],
    [0.8750000000000001, -2.05, 0.5249999999999999],
];
const MOMENTUM: Steps = [
    [0.95, -2.125, 0.575],
    [0.955, -2.2625, 0.5425],
    [0.8344999999999999, -2.3112500000000002, 0.51325],
    [0.70105, -2.4551250000000002, 0.586925],
    [0.655945, -2.5846125000000004, 0.5782325],
    [0.5153505, -2.6011512500000005, 0.59540925],
    [0.38881545000000006, -2.6910361250000006, 0.735868325],
    [0.37493390500000007, -2.7469325125000004, 0.8122814925],
    [0.2874405145000001, -2.6722392612500006, 0.9310533432500001],
    [0.23369646305000008, -2.6550153351250008, 0.9129480089250002],
];
const NESTEROV_DECAY: Steps = [
    [0.8955, -2.2185, 0.63775],
    [0.93744275, -2.33807425, 0.500416375],
    [0.687815268875, -2.268462619625, 0.4649320319375],
    [0.5258347831831874, -2.4522830915260627, 0.6208311425653438],
    [0.5431520843302533, -2.514632908655834, 0.5248346404197511],
    [0.29844396708579957, -2.367894005352265, 0.5512455995462742],
    [0.16781562825796223, -2.4571498474171576, 0.7871403854463442],
    [0.2399988726963441, -2.409792704749183, 0.7869484642926252],
    [0.07093897372743332, -2.140335419966266, 0.9228418565780068],
    [
        0.034191139332136564,
        -2.0958347443433327,
        0.7574201800866759,
    ],
];
const DAMPENED_DECAY: Steps = [
    [0.945, -2.115, 0.5725],
    [0.9326924999999999, -2.2170975000000004, 0.55849625],
    [0.8320820762499999, -2.2385156587500004, 0.545338513125],
    [0.7311814499831248, -2.3178153809443756, 0.6029036388290625],
    [0.7004018138946839, -2.3731428048665704, 0.5943455766564107],
    [0.6033266986752998, -2.339098744187293, 0.6029189173999919],
    [0.5235549630544288, -2.356176650039216, 0.6951673737839569],
    [0.5279051321870416, -2.344092356445617, 0.7315330530828851],
    [0.4770375995304772, -2.238720598323178, 0.7930652308362375],
    [0.452173941806869, -2.181587669731096, 0.7520152447309926],
];
const ADAMW: Steps = [
    [0.899000002, -2.0979999992, 0.5994999986666667],
    [0.9033641597874735, -2.176206096152798, 0.5795494579732674],
    [0.8488511215674535, -2.1951011850480158, 0.5640114980110004],
    [0.7947670979467629, -2.2397764624878196, 0.5902128256833423],
    [0.7789500580471518, -2.277152843653562, 0.5869376383600396],
    [0.7399045151862257, -2.2791014328273107, 0.5913813397735982],
    [0.705746236959427, -2.2977414072672984, 0.6234676458675855],
    [0.7018568188921083, -2.308102629844013, 0.6398149386652229],
    [0.6824567474308941, -2.2913068155454583, 0.6645642085375001],
    [0.6704521675762752, -2.2857660483800144, 0.6605325208865147],
];
const ADAMW_OTHER: Steps = [
    [0.9450000999998, -2.039999960000032, 0.5474999333334223],
    [0.9458306439442676, -2.0687848867216614, 0.5322365449283873],
    [0.9126504061442923, -2.064510663422177, 0.5204022899194584],
    [0.8806375852305134, -2.077057174336525, 0.5335177296692895],
    [0.8722161545020635, -2.0848750486261984, 0.5279378712571047],
    [0.8480338821770974, -2.0706597342026027, 0.5276718183972983],
    [0.8275846069175165, -2.0690501696330004, 0.5455847196859259],
    [0.8274701461301255, -2.061891830706937, 0.5516749310880008],
    [0.8151634035097313, -2.0366633720756835, 0.5636048221334379],
    [0.8082299679616314, -2.021336902264877, 0.5543744702255258],
];

fn gradient(step: u64) -> [f64; 3] {
    let t = step + 1;
    [0, 1, 2].map(|k| ((7 * t + 3 * k) % 11) as f64 / 4.0 - 1.25)
}

fn check(mut rule: impl LocalRule<f64>, lr: f64, expected: &Steps) {
    let mut x = [1.0, -2.0, 0.5];
    rule.init(3);
    for (step, want) in expected.iter().enumerate() {
        let step = step as u64;
        let g = gradient(step);
        let local = Local {
            at: 0..3,
            x: &mut x,
            g: &g,
        };
        rule.step(&Cx::at(step, lr), local);
        for (got, want) in x.iter().zip(want) {
            assert!(
                (got - want).abs() < TOLERANCE,
                "step {step}: {x:?}, wanted {want}"
            );
        }
    }
}

fn whole<'a>(x: &'a mut [f64; 3], g: &'a [f64; 3]) -> Local<'a, f64> {
    Local { at: 0..3, x, g }
}

fn sgd(config: SgdConfig) -> Sgd<f64> {
    Sgd::new(config).expect("in range")
}

fn adamw(config: AdamWConfig) -> AdamW<f64> {
    AdamW::new(config).expect("in range")
}

#[test]
fn sgd_without_momentum_is_torchs() {
    check(Sgd::plain(), 0.1, &PLAIN);
}

#[test]
fn momentum_is_torchs() {
    let config = SgdConfig {
        momentum: 0.9,
        ..SgdConfig::default()
    };
    check(sgd(config), 0.1, &MOMENTUM);
}

#[test]
fn nesterov_with_decay_is_torchs() {
    let config = SgdConfig {
        momentum: 0.9,
        nesterov: true,
        weight_decay: 0.05,
        ..SgdConfig::default()
    };
    check(sgd(config), 0.1, &NESTEROV_DECAY);
}

/// The first gradient enters undampened.
#[test]
fn dampening_with_decay_is_torchs() {
    let config = SgdConfig {
        momentum: 0.8,
        dampening: 0.3,
        weight_decay: 0.05,
        ..SgdConfig::default()
    };
    check(sgd(config), 0.1, &DAMPENED_DECAY);
}

#[test]
fn adamw_is_torchs() {
    check(adamw(AdamWConfig::default()), 0.1, &ADAMW);
    let config = AdamWConfig {
        beta1: 0.8,
        beta2: 0.95,
        eps: 1e-6,
        weight_decay: 0.1,
    };
    check(adamw(config), 0.05, &ADAMW_OTHER);
}

/// `step_into` and `step_from` are the same step with another place to read or write.
#[test]
fn the_three_forms_of_a_step_agree() {
    let config = SgdConfig {
        momentum: 0.9,
        weight_decay: 0.05,
        ..SgdConfig::default()
    };
    let mut rules: [Box<dyn LocalRule<f64>>; 2] = [
        Box::new(sgd(config)),
        Box::new(adamw(AdamWConfig::default())),
    ];
    for rule in &mut rules {
        let cx = Cx::at(0, 0.1);
        let (start, g, base) = ([1.0, -2.0, 0.5], gradient(0), [10.0, 20.0, 30.0]);
        let mut in_place = start;
        rule.init(3);
        rule.step(&cx, whole(&mut in_place, &g));
        let mut out = [0.0; 3];
        rule.init(3);
        rule.step_into(&cx, 0..3, &start, &g, &mut out);
        assert_eq!(out, in_place);
        let mut from = start;
        rule.init(3);
        rule.step_from(&cx, whole(&mut from, &g), &base);
        for k in 0..3 {
            let moved = in_place[k] - start[k];
            assert!((from[k] - base[k] - moved).abs() < 1e-14);
        }
    }
}

/// In f32 state is f32 and arithmetic f64: ten steps stay within a few roundings of the f64 run.
#[test]
fn narrow_types_follow_within_their_rounding() {
    let mut rule = AdamW::<f32>::new(AdamWConfig::default()).expect("in range");
    let mut x = [1.0_f32, -2.0, 0.5];
    rule.init(3);
    for step in 0..10 {
        let g = gradient(step).map(|g| g as f32);
        let local = Local {
            at: 0..3,
            x: &mut x,
            g: &g,
        };
        rule.step(&Cx::at(step, 0.1), local);
    }
    for (got, want) in x.iter().zip(ADAMW[9]) {
        assert!((f64::from(*got) - want).abs() < 2e-6, "{x:?}");
    }
}
