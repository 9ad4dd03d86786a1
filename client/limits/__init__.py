"""What a volunteer lends, and when: limits, the facts they ask for, and the decision."""
