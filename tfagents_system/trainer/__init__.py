"""The policy-update process: it trains the agent, publishes the policy, and saves both."""
