"""What a client trains, where methods share labels and not parameters: any supervised learner, one protocol.

Networks train here as they do in `jaxfed.training`, all clients in one program; trees and other estimators
in processes. Who is taught what is a method's to say. `jaxfed.algorithms` and the wings above import it.
"""
