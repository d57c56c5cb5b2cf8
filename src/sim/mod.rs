//! The simulated multi-rank server: engine step (pure), prefix cache, cost model, DP fleet, HTTP front.
